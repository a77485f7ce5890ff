"""Small cells with inputs that suit them, for `pararnn verify`, `pararnn bench` and the conformance kit."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn_cfc.parallel import ParaCfC


def parallel_cfc(batch: int, length: int, *, seed: int) -> tuple[ParaCfC, Tensor]:
    """A `ParaCfC` with five features and eight channels, and irregular samples for it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        cell = ParaCfC(6, 8, dtype=torch.float64)
        features = torch.randn(batch, length, 5, dtype=torch.float64)
        elapsed = 0.05 + torch.rand(batch, length, 1, dtype=torch.float64)
    return cell, torch.cat((features, elapsed), dim=-1)
