"""The fused solve on the autograd graph: one node, differentiable once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pararnn.compiler.solving import ADVICE
from pararnn.solver.adjoint import limit_derivatives
from pararnn_cfc.fused_passes import Needs, Sources, gradients, solve
from pararnn_cfc.fused_setting import Setting


def attached(setting: Setting, sources: Sources, offsets: Tensor | None) -> tuple[Tensor, Tensor]:
    """States `(batch, time, state)`, differentiable once by what they follow from, and the record of the engine."""
    if not torch.is_grad_enabled():
        return solve(setting, sources, offsets)
    if not any(source is not None and source.requires_grad for source in sources):
        with torch.no_grad():
            return solve(setting, sources, offsets)
    records: list[Tensor] = []
    states: Tensor = _Fused.apply(setting, records, offsets, *sources)
    return states, records[0]


def once(derivative: Tensor | None, grad: Tensor, sources: Sources) -> Tensor | None:
    """A derivative that raises `DifferentiationError` where it is differentiated in turn."""
    # Whatever is differentiated again depends on one of these, so a refusing node lies on the way of every such request.
    known = (grad, *(source for source in sources if source is not None))
    return None if derivative is None else limit_derivatives(derivative, *known, order=0, derived=True, advice=ADVICE)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, setting: Setting, records: list[Tensor], offsets: Tensor | None, *sources: Any) -> Tensor:
        given = Sources(*sources)
        states, record = solve(setting, given, offsets)
        records.append(record)
        ctx.setting = setting
        ctx.save_for_backward(states, offsets, *sources)
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        states, offsets, *rest = ctx.saved_tensors
        sources, needs = Sources(*rest), Needs(*ctx.needs_input_grad[3:])
        if not torch.is_grad_enabled():
            return None, None, None, *gradients(ctx.setting, grad, states, sources, offsets, needs)
        with torch.no_grad():
            found = gradients(ctx.setting, grad, states, sources, offsets, needs)
        return None, None, None, *(once(derivative, grad, sources) for derivative in found)
