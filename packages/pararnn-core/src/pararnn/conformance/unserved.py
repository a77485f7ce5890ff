"""A structure that no operation names, to try backends of `scan/generic` on: they must work from the members of `Structure` alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from pararnn.structures.base import Structure
from pararnn.structures.dense import Dense


@dataclass(frozen=True, eq=False)
class TwoLeaves(Structure):
    """Matrices held as a diagonal `(*lead, state)` and the rest `(*lead, state, state)`, whose own diagonal counts as zero."""

    diagonal: Tensor
    rest: Tensor

    def leaves(self) -> tuple[Tensor, ...]:
        return self.diagonal, self.rest

    @classmethod
    def from_leaves(cls, *leaves: Tensor) -> Self:
        return cls(*leaves)

    @classmethod
    def of_matrices(cls, matrices: Tensor) -> Self:
        """The maps of dense `matrices`."""
        return cls(matrices.diagonal(dim1=-2, dim2=-1), matrices)

    @classmethod
    def linearize(cls, step: Callable[[Tensor], Tensor], state: Tensor) -> tuple[Tensor, Self]:
        value, dense = Dense.linearize(step, state)
        return value, cls.of_matrices(dense.matrix)

    def compose(self, earlier: Self) -> Self:
        return self.of_matrices(self.to_dense() @ earlier.to_dense())

    def apply(self, vector: Tensor) -> Tensor:
        return (self.to_dense() @ vector.unsqueeze(-1)).squeeze(-1)

    def transpose(self) -> Self:
        return type(self)(self.diagonal, self.rest.mT)

    def to_dense(self) -> Tensor:
        off = ~torch.eye(self.rest.shape[-1], dtype=torch.bool, device=self.rest.device)
        return torch.diag_embed(self.diagonal) + torch.where(off, self.rest, 0)


def two_leaves(lead: tuple[int, ...], state_size: int, *, seed: int, dtype: torch.dtype) -> TwoLeaves:
    """Maps with normal entries, scaled so that products stay of order one."""
    generator = torch.Generator().manual_seed(seed)
    diagonal = torch.randn(*lead, state_size, generator=generator, dtype=dtype)
    rest = torch.randn(*lead, state_size, state_size, generator=generator, dtype=dtype)
    return TwoLeaves(diagonal / state_size**0.5, rest / state_size**0.5)
