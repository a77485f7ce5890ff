"""Pairs of channels, of which the first sees both and the second sees itself: `[[a, b], [0, d]]` for each pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from pararnn import Structure


@dataclass(frozen=True, eq=False)
class UpperPairs(Structure):
    """Triangular maps and their transposes, held as `(*lead, 4, pairs)`: the entries `a`, `b`, `c`, `d` of `[[a, b], [c, d]]`.

    The state is `(*lead, 2 * pairs)`, all first channels before all second ones. `c` is zero in what a cell's step gives; a transpose has
    `b` zero instead, which is why both are kept.
    """

    entries: Tensor

    def leaves(self) -> tuple[Tensor, ...]:
        """The entries."""
        return (self.entries,)

    @classmethod
    def from_leaves(cls, *leaves: Tensor) -> Self:
        """The maps of `(entries,)`."""
        (entries,) = leaves
        return cls(entries)

    @classmethod
    def linearize(cls, step: Callable[[Tensor], Tensor], state: Tensor) -> tuple[Tensor, Self]:
        """The value of `step` and its derivative: one direction for all first channels, one for all second ones."""
        first, second = torch.ones_like(state).chunk(2, dim=-1)
        value, by_first = torch.func.jvp(step, (state,), (torch.cat((first, torch.zeros_like(second)), dim=-1),))
        _, by_second = torch.func.jvp(step, (state,), (torch.cat((torch.zeros_like(first), second), dim=-1),))
        (a, c), (b, d) = by_first.chunk(2, dim=-1), by_second.chunk(2, dim=-1)
        return value, cls(torch.stack((a, b, c, d), dim=-2))

    @classmethod
    def cost(cls, state_size: int) -> tuple[int, int]:
        """Eight multiplications a pair to compose, four to apply."""
        return 4 * state_size, 2 * state_size

    def compose(self, earlier: Self) -> Self:
        """The product, `earlier` first."""
        a, b, c, d = self.entries.unbind(-2)
        e, f, g, h = earlier.entries.unbind(-2)
        return type(self)(torch.stack((a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h), dim=-2))

    def apply(self, vector: Tensor) -> Tensor:
        """The maps applied to `vector` `(*lead, state)`."""
        a, b, c, d = self.entries.unbind(-2)
        first, second = vector.chunk(2, dim=-1)
        return torch.cat((a * first + b * second, c * first + d * second), dim=-1)

    def transpose(self) -> Self:
        """The transposed maps."""
        a, b, c, d = self.entries.unbind(-2)
        return type(self)(torch.stack((a, c, b, d), dim=-2))

    def to_dense(self) -> Tensor:
        """The maps as matrices."""
        a, b, c, d = (torch.diag_embed(entry) for entry in self.entries.unbind(-2))
        return torch.cat((torch.cat((a, b), dim=-1), torch.cat((c, d), dim=-1)), dim=-2)
