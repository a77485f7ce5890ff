"""A small cell with inputs, and random members of the structure."""

from __future__ import annotations

import torch
from torch import Tensor

from recurrent_toys.cell import ToyCell
from recurrent_toys.structure import UpperPairs


def toy_cell(batch: int, length: int, *, seed: int) -> tuple[ToyCell, Tensor]:
    """A cell with three inputs and five channels."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ToyCell(3, 5).double(), torch.randn(batch, length, 3, dtype=torch.float64)


def upper_pairs(lead: tuple[int, ...], state_size: int, *, seed: int, dtype: torch.dtype) -> UpperPairs:
    """Triangular maps with normal entries; `state_size` must be even."""
    generator = torch.Generator().manual_seed(seed)
    entries = torch.randn(*lead, 4, state_size // 2, generator=generator, dtype=dtype) / 2
    return UpperPairs(entries * torch.tensor([1, 1, 0, 1], dtype=dtype).unsqueeze(-1))
