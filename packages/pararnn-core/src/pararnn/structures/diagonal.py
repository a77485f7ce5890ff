"""Channelwise cells: each channel of the state depends on its own past alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from pararnn.structures.base import Structure, push_forward


@dataclass(frozen=True, eq=False)
class Diagonal(Structure):
    """Diagonal maps, held as their diagonal `(*lead, state)`."""

    diagonal: Tensor

    def leaves(self) -> tuple[Tensor, ...]:
        return (self.diagonal,)

    @classmethod
    def from_leaves(cls, *leaves: Tensor) -> Self:
        (diagonal,) = leaves
        return cls(diagonal)

    @classmethod
    def linearize(cls, step: Callable[[Tensor], Tensor], state: Tensor) -> tuple[Tensor, Self]:
        # One direction sees every channel at once, because no channel sees another.
        value, derivative = push_forward(step, state, torch.ones_like(state))
        return value, cls(derivative)

    @classmethod
    def cost(cls, state_size: int) -> tuple[int, int]:
        return state_size, state_size

    def compose(self, earlier: Self) -> Self:
        return type(self)(self.diagonal * earlier.diagonal)

    def apply(self, vector: Tensor) -> Tensor:
        return self.diagonal * vector

    def apply_add(self, vector: Tensor, bias: Tensor, *, out: Tensor | None = None) -> Tensor:
        return torch.addcmul(bias, self.diagonal, vector, out=out)

    def gain(self) -> Tensor:
        return self.diagonal.abs()

    def transpose(self) -> Self:
        return self

    def leaf_cotangents(self, vector: Tensor, cotangent: Tensor) -> tuple[Tensor, ...]:
        return (cotangent * vector.conj(),)

    def to_dense(self) -> Tensor:
        return torch.diag_embed(self.diagonal)
