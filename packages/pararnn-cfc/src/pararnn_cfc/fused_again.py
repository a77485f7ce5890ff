"""Solves of a form that was solved before, without asking again who solves it and how.

Looking whether a cell, its inputs and the circumstances are fit for a kernel takes longer than a small solve. What was fit once is recognised by its
form; what may have changed apart from that is looked at each time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pararnn.compiler.record import Record
from pararnn.registry import installed
from pararnn.scans.dispatch import only_numbers
from pararnn.selection import REMEMBERED
from pararnn.solver.config import NewtonConfig
from pararnn.solver.result import SolveResult
from pararnn_cfc.fused_gradients import attached
from pararnn_cfc.fused_setting import Setting
from pararnn_cfc.fused_sources import Sources, weights_of
from pararnn_cfc.fused_start import zeros
from pararnn_cfc.parallel import ParaCfC

# Where nothing has to be looked at before and after a solve.
DEVICES = {"cuda"}
# What a cell would answer the solver with, were it an attribute of its own instead of one of its class.
OWN = frozenset(("initial_state", "is_linear", "exact_jacobian", "solve_ops", "solve_obstacles", "state_dtype"))
INITIAL_STATE = ParaCfC.initial_state


def solve(cell: ParaCfC, x: Tensor, config: NewtonConfig, h0: Tensor | None) -> SolveResult | None:
    """The solve of `cell` over `x` from `h0` or zero, if one of this form is remembered and nothing stands against it now; else None."""
    if type(x) is not Tensor:
        return None
    weight, bias, u = weights_of(cell)
    if x.is_neg() or weight.is_neg() or u.is_neg() or (bias is not None and bias.is_neg()) or (h0 is not None and h0.is_neg()):
        return None
    known = installed().memo.get(_form(cell, x, weight, bias, u, h0, config))
    if known is None or torch.is_autocast_enabled(x.device.type) or not only_numbers() or not _is_itself(cell):
        return None
    setting, dtype, _ = known
    start = zeros(x.shape[0], cell.d_h, dtype, x.device) if h0 is None else h0
    states, record = attached(setting, Sources(x, weight, bias, u, start), None)
    return SolveResult.deferred(Record(setting.plan, states, start, record, None), states=states, plan=setting.plan, backend=setting.engine.name)


def remember(cell: ParaCfC, sources: Sources, config: NewtonConfig, h0: Tensor | None, setting: Setting) -> None:
    """Remember that `cell` was solved with `setting`, as long as choices of backends are remembered."""
    x, weight, bias, u, initial = sources
    if type(cell) is not ParaCfC or type(x) is not Tensor or not (h0 is initial or (h0 is None and _is_itself(cell))):
        return
    memory: dict[Any, Any] = installed().memo
    if len(memory) >= REMEMBERED:
        memory.clear()
    # The configuration is told by its address, so it is kept.
    memory[_form(cell, x, weight, bias, u, h0, config)] = setting, initial.dtype, config


def _is_itself(cell: ParaCfC) -> bool:
    """Whether the cell does what its class was made to do."""
    return ParaCfC.initial_state is INITIAL_STATE and OWN.isdisjoint(cell.__dict__) and not cell.solve_obstacles()


def _form(cell: ParaCfC, x: Tensor, weight: Tensor, bias: Tensor | None, u: Tensor, h0: Tensor | None, config: NewtonConfig) -> tuple[object, ...]:
    """All that a setting follows from."""
    return (
        "cfc/newton",
        id(config),
        cell.max_recurrent_norm,
        cell.d_in,
        cell.d_h,
        torch.is_grad_enabled(),
        x.shape,
        x.dtype,
        x.device,
        type(weight),
        weight.shape,
        weight.dtype,
        weight.device,
        type(u),
        u.shape,
        u.dtype,
        u.device,
        None if bias is None else (type(bias), bias.shape, bias.dtype, bias.device),
        None if h0 is None else (type(h0), h0.shape, h0.dtype, h0.device),
    )
