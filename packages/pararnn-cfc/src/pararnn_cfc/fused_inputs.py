"""Inputs at fault, on a CPU, where nothing has to be waited for: looked for with the numbers at hand, also where a graph runs."""

from __future__ import annotations

import itertools
import math

from torch import Tensor, nn

from pararnn.scans.segments import Offsets
from pararnn.solver.api import cell_problem
from pararnn.solver.config import NewtonConfig
from pararnn.solver.truth import is_finite
from pararnn_cfc.fused_sources import Sources
from pararnn_cfc.parallel import ParaCfC
from pararnn_cfc.time_gaps import checked


def check_gaps(x: Tensor) -> None:
    """Raise `InputError` where a time gap of samples `x` `(batch, time, d_in)` is NaN or negative."""
    if not x.detach().select(2, -1).amin().item() >= 0:
        checked(x[..., -1:])


def end_finite(states: Tensor, ends: Offsets | None) -> bool:
    """Whether the last states are finite: whatever is not stays so to the end of its sequence."""
    states = states.detach()
    last = states.select(1, -1) if ends is None else states[0, [end - 1 for start, end in itertools.pairwise(ends) if end > start]]
    return math.isfinite(last.sum().item())


def check_sources(sources: Sources, states: Tensor, cu_seqlens: Tensor | None, bound: float | None) -> None:
    """Raise `InputError` where `states` are not finite because the inputs are not."""
    x, weight, bias, u, initial = sources
    cell = ParaCfC(x.shape[2], initial.shape[1], max_recurrent_norm=bound, device="meta", dtype=u.dtype)
    cell.W_x.weight, cell.u = _held(weight), _held(u)
    cell.W_x.register_parameter("bias", None if bias is None else _held(bias))
    is_finite(cell_problem(cell, x, NewtonConfig(), h0=initial, cu_seqlens=cu_seqlens), states)


def _held(weight: Tensor) -> nn.Parameter:
    return nn.Parameter(weight.detach(), requires_grad=False)
