"""Small cells with inputs, for `pararnn verify`, `pararnn bench` and the conformance kit."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn_s4.cells.diagonal import ParaS4D
from pararnn_s4.cells.dplr import ParaS4


def para_s4d(batch: int, length: int, *, seed: int) -> tuple[ParaS4D, Tensor]:
    """A cell of three features with four complex states each."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ParaS4D(3, d_state=8, dt_min=0.01, dtype=torch.float64), torch.randn(batch, length, 3, dtype=torch.float64)


def para_s4(batch: int, length: int, *, seed: int) -> tuple[ParaS4, Tensor]:
    """A cell of three features with six real states each."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ParaS4(3, d_state=6, dt_min=0.01, dtype=torch.float64), torch.randn(batch, length, 3, dtype=torch.float64)
