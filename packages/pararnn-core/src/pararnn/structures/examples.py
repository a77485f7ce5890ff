"""Random members of the core's structures, for the laws and the conformance kit."""

from __future__ import annotations

import torch

from pararnn.structures.block_diagonal import BlockDiagonal
from pararnn.structures.dense import Dense
from pararnn.structures.diagonal import Diagonal


def _draw(*shape: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def diagonal(lead: tuple[int, ...], state_size: int, *, seed: int, dtype: torch.dtype) -> Diagonal:
    """Diagonal maps with standard normal entries."""
    return Diagonal(_draw(*lead, state_size, seed=seed, dtype=dtype))


def dense(lead: tuple[int, ...], state_size: int, *, seed: int, dtype: torch.dtype) -> Dense:
    """Matrices with normal entries, scaled so that products stay of order one."""
    return Dense(_draw(*lead, state_size, state_size, seed=seed, dtype=dtype) / state_size**0.5)


def block_diagonal(lead: tuple[int, ...], state_size: int, *, seed: int, dtype: torch.dtype) -> BlockDiagonal:
    """Two-slot blocks with normal entries, scaled so that products stay of order one; `state_size` must be even."""
    return BlockDiagonal(_draw(*lead, 2, 2, state_size // 2, seed=seed, dtype=dtype) / 2**0.5)
