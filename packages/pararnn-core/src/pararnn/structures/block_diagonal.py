"""Cells whose state is a few slots of channels, each channel mixing its own slots: an LSTM's hidden and cell state, a complex pole."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn.structures.base import Structure, push_forward, unit_tangents


@dataclass(frozen=True, eq=False)
class BlockDiagonal(Structure):
    """One `slots x slots` block a channel, held as `(*lead, slots, slots, channels)` (row, column, channel).

    The state is slot-major, `(*lead, slots * channels)`: all channels of the first slot, then all of the second. Channels lie
    contiguously, so that blocks are composed by a few vectorised products instead of many tiny matrix products.
    `BlockDiagonal` itself has two slots; `BlockDiagonal.sized(k)` gives the class with `k`.
    """

    blocks: Tensor
    slots: ClassVar[int] = 2

    @staticmethod
    def sized(slots: int) -> type[BlockDiagonal]:
        """The block diagonal structure with `slots` slots a channel.

        Raises:
            ConfigError: `slots` is less than 1.
        """
        if slots < 1:
            raise ConfigError(f"a block has at least 1 slot, got slots={slots}", slots=slots)
        return BlockDiagonal if slots == 2 else _sized(slots)

    def leaves(self) -> tuple[Tensor, ...]:
        return (self.blocks,)

    @classmethod
    def from_leaves(cls, *leaves: Tensor) -> Self:
        (blocks,) = leaves
        return cls(blocks)

    @classmethod
    def linearize(cls, step: Callable[[Tensor], Tensor], state: Tensor) -> tuple[Tensor, Self]:
        channels = state.shape[-1] // cls.slots
        value = state
        columns = []
        for unit in unit_tangents(state, cls.slots):
            # One direction a slot sees every channel at once, because no channel sees another.
            direction = unit.repeat_interleave(channels).expand_as(state)
            value, derivative = push_forward(step, state, direction)
            columns.append(derivative.unflatten(-1, (cls.slots, channels)))
        return value, cls(torch.stack(columns, dim=-2))

    @classmethod
    def cost(cls, state_size: int) -> tuple[int, int]:
        return state_size * cls.slots**2, state_size * cls.slots

    def compose(self, earlier: Self) -> Self:
        late, early = self.blocks, earlier.blocks
        return type(self)(sum_over_slots(late.unsqueeze(-2), early.unsqueeze(-4), dim=-3))

    def apply(self, vector: Tensor) -> Tensor:
        slotted = vector.unflatten(-1, (self.slots, vector.shape[-1] // self.slots))
        return sum_over_slots(self.blocks, slotted.unsqueeze(-3), dim=-2).flatten(-2)

    def gain(self) -> Tensor:
        return self.blocks.abs().square().sum(-2).sqrt().flatten(-2)

    def transpose(self) -> Self:
        return type(self)(self.blocks.transpose(-3, -2))

    def to_dense(self) -> Tensor:
        # (row, column, channel) -> (row, channel, column, channel'), nonzero where the channels agree.
        return torch.diag_embed(self.blocks).transpose(-3, -2).flatten(-4, -3).flatten(-2)


def sum_over_slots(left: Tensor, right: Tensor, dim: int) -> Tensor:
    """`(left * right).sum(dim)` for a handful of slots."""
    return (left * right).sum(dim)


@functools.cache
def _sized(slots: int) -> type[BlockDiagonal]:
    name = f"BlockDiagonal{slots}"
    return type(name, (BlockDiagonal,), {"slots": slots, "__module__": __name__, "__qualname__": name, "__doc__": BlockDiagonal.__doc__})


def __getattr__(name: str) -> Any:
    # Sized classes are made on demand; pickle finds them here by name, also in a process that has not made them yet.
    size = name.removeprefix("BlockDiagonal")
    if name.startswith("BlockDiagonal") and size.isdecimal() and int(size) >= 1:
        return BlockDiagonal.sized(int(size))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
