"""The fused solve on the autograd graph: one node, differentiable once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pararnn.compiler.solving import ADVICE
from pararnn.solver.adjoint import limit_derivatives
from pararnn_cfc import fused_direct as direct
from pararnn_cfc import fused_passes as passes
from pararnn_cfc.fused_setting import Setting
from pararnn_cfc.fused_sources import Needs, Sources


def attached(setting: Setting, sources: Sources, offsets: Tensor | None) -> tuple[Tensor, Tensor]:
    """States `(batch, time, state)`, differentiable once by what they follow from, and the record of the engine."""
    if not torch.is_grad_enabled():
        return _solved(setting, sources, offsets)[:2]
    if not (sources.weight.requires_grad or any(source is not None and source.requires_grad for source in sources)):
        with torch.no_grad():
            return _solved(setting, sources, offsets)[:2]
    records: list[Tensor] = []
    states: Tensor = _apply(setting, records, offsets, *sources)
    return states, records[0]


def once(derivative: Tensor | None, grad: Tensor, sources: Sources) -> Tensor | None:
    """A derivative that raises `DifferentiationError` where it is differentiated in turn."""
    # Whatever is differentiated again depends on one of these, so a refusing node lies on the way of every such request.
    known = (grad, *(source for source in sources if source is not None))
    return None if derivative is None else limit_derivatives(derivative, *known, order=0, derived=True, advice=ADVICE)


def _solved(setting: Setting, sources: Sources, offsets: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """States, record, and the projections where they were made."""
    if setting.inside is None and setting.by_address:
        return direct.solve(setting, sources, offsets)
    return *passes.solve(setting, sources, offsets), None


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, setting: Setting, records: list[Tensor], offsets: Tensor | None, *sources: Any) -> Tensor:
        states, record, wx = _solved(setting, Sources(*sources), offsets)
        records.append(record)
        ctx.setting = setting
        # Gradients are written over the projections, so they serve once.
        ctx.spare = [wx] if wx is not None and direct.is_kept(setting, wx) else []
        ctx.save_for_backward(states, offsets, *sources)
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        states, offsets, *rest = ctx.saved_tensors
        grad = grad.resolve_neg()
        sources, needs = Sources(*rest), Needs(*ctx.needs_input_grad[3:])
        if not torch.is_grad_enabled():
            return None, None, None, *_gradients(ctx, grad, states, sources, offsets, needs)
        with torch.no_grad():
            found = _gradients(ctx, grad, states, sources, offsets, needs)
        return None, None, None, *(once(derivative, grad, sources) for derivative in found)


# What `_Fused.apply` comes to where no transform is active, and here none is; asking for that takes a third of its time.
_apply: Callable[..., Any] = super(torch.autograd.Function, _Fused).apply


def _gradients(ctx: Any, grad: Tensor, states: Tensor, sources: Sources, offsets: Tensor | None, needs: Needs) -> tuple[Tensor | None, ...]:
    found = None
    if ctx.setting.by_address:
        try:
            # Popped, because two threads may differentiate at once.
            wx = ctx.spare.pop()
        except IndexError:
            wx = None
        found = direct.gradients(ctx.setting, grad, states, sources, offsets, needs, wx)
    return passes.gradients(ctx.setting, grad, states, sources, offsets, needs) if found is None else found
