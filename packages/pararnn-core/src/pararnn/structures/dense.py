"""Cells whose channels all see each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from pararnn.structures.base import FORWARD_MODE, Structure, push_forward, unit_tangents


@dataclass(frozen=True, eq=False)
class Dense(Structure):
    """Full matrices `(*lead, state, state)`."""

    matrix: Tensor

    def leaves(self) -> tuple[Tensor, ...]:
        return (self.matrix,)

    @classmethod
    def from_leaves(cls, *leaves: Tensor) -> Self:
        (matrix,) = leaves
        return cls(matrix)

    @classmethod
    def linearize(cls, step: Callable[[Tensor], Tensor], state: Tensor) -> tuple[Tensor, Self]:
        directions = torch.stack(unit_tangents(state, state.shape[-1]))

        def push(direction: Tensor) -> tuple[Tensor, Tensor]:
            return push_forward(step, state, direction.expand_as(state))

        with FORWARD_MODE:
            values, matrix = torch.func.vmap(push, out_dims=(0, -1), randomness="error")(directions)
        # `step` does not see the direction, so every value is the same.
        return values[0], cls(matrix)

    def compose(self, earlier: Self) -> Self:
        return type(self)(self.matrix @ earlier.matrix)

    def apply(self, vector: Tensor) -> Tensor:
        return (self.matrix @ vector.unsqueeze(-1)).squeeze(-1)

    def gain(self) -> Tensor:
        return self.matrix.abs().square().sum(-1).sqrt()

    def transpose(self) -> Self:
        return type(self)(self.matrix.mT)

    def leaf_cotangents(self, vector: Tensor, cotangent: Tensor) -> tuple[Tensor, ...]:
        return (cotangent.unsqueeze(-1) * vector.conj().unsqueeze(-2),)

    def to_dense(self) -> Tensor:
        return self.matrix
