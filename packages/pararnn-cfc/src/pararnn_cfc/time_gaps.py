"""Time gaps: what is accepted, and what is refused with a sentence."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.errors import InputError
from pararnn.solver.lanes import largest, smallest

# Seconds below which two samples count as this far apart.
SHORTEST = 1e-4


def checked(elapsed: Tensor) -> Tensor:
    """`elapsed` `(..., 1)`, seconds since the previous sample, limited to what the cell can use.

    Zero counts as the shortest gap of 1e-4 s, which keeps the state to about that share of its rate; infinity is a gap after which nothing of the
    past is left.

    While a graph is compiled or captured no value can be read. A negative gap then becomes NaN, and what is NaN stays so: on a CPU a kernel in the
    graph raises `InputError` when it meets that, and otherwise the states are NaN from there on.

    Raises:
        InputError: a gap is NaN or negative. Not checked while a graph is compiled or captured.
    """
    gap = elapsed.clamp(SHORTEST, torch.finfo(elapsed.dtype).max)
    if torch.compiler.is_compiling() or (elapsed.is_cuda and torch.cuda.is_current_stream_capturing()):
        return torch.where(elapsed >= 0, gap, torch.nan)
    if elapsed.numel():
        low = smallest(torch.where(elapsed.isnan(), -torch.inf, elapsed.detach()))
        if low < 0:
            bad = largest(elapsed.detach().isnan().to(torch.int32)) > 0
            what = "NaN" if bad else f"negative ({low:g} s at the least)"
            raise InputError(
                f"a time gap is {what}; the last channel of x must hold the seconds since the previous sample, at least 0: "
                "sort the samples by time and take differences",
                smallest=low,
            )
    return gap
