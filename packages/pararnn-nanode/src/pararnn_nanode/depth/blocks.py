"""Corrections of a whole trajectory from the residuals of its steps: the linear half of an iteration that is parallel over depth.

The corrections `d` of the states answer `d[k+1] = (I + h_k J_k) d[k] + r[k]`, `d[0] = 0`, with the residual `r` of each step. A Newton iteration
solves this exactly, by a scan of products of matrices. Here it is solved to within a factor that tends to zero with the number of blocks, which
costs about one evaluation of the field: depth is cut into blocks, a block has one Jacobian `J`, that of its middle, and with `H` its length

- inside a block residuals are summed, `s[j] = r[0] + ... + r[j]`, and the correction at its start is carried along a straight line;
- from block to block `d` becomes `d + G d + s[-1] + H J mean(s)` with `G = H J + (H J)^2 / 2`, a walk over the few blocks.

What is left out is of second order in `H J`. The iteration that uses these corrections converges to the exact states whatever they are.
Picard's iteration is the case `J = 0`: the correction is the sum of all residuals before.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from pararnn.structures import Dense, Structure


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Depth in `count` blocks of `length` steps, of which the last may be filled up with steps that do nothing."""

    steps: int
    count: int
    length: int

    @classmethod
    def into(cls, steps: int, blocks: int) -> Self:
        """About `blocks` blocks, none of them empty."""
        length = -(-steps // max(1, min(blocks, steps)))
        return cls(steps=steps, count=-(-steps // length), length=length)

    @property
    def bounds(self) -> list[int]:
        """The knots at which blocks start, and the last knot."""
        return [*range(0, self.steps, self.length), self.steps]

    @property
    def middles(self) -> list[int]:
        """The step in the middle of each block."""
        return [(first + last) // 2 for first, last in zip(self.bounds, self.bounds[1:], strict=False)]

    def split(self, rows: Tensor) -> Tensor:
        """`rows` `(steps, ...)` as `(count, length, ...)`, zero in the steps that fill up."""
        missing = self.count * self.length - self.steps
        padded = F.pad(rows, (0, 0) * (rows.ndim - 1) + (0, missing)) if missing else rows
        blocks: Tensor = padded.unflatten(0, (self.count, self.length))
        return blocks

    def join(self, blocks: Tensor) -> Tensor:
        """Inverse of `split`."""
        return blocks.flatten(0, 1)[: self.steps]


class Correction(abc.ABC):
    """A linear map from residuals of steps `(steps, *state)` to corrections of the states after them."""

    @abc.abstractmethod
    def apply(self, residual: Tensor) -> Tensor:
        """The corrections `(steps, *state)`."""

    @abc.abstractmethod
    def apply_adjoint(self, residual: Tensor) -> Tensor:
        """The corrections of costates, which run the other way: `d[k] = (I + h J)^H d[k+1] + r[k]`."""


class Summed(Correction):
    """Picard's: all residuals before are added up."""

    def apply(self, residual: Tensor) -> Tensor:
        return residual.cumsum(0)

    def apply_adjoint(self, residual: Tensor) -> Tensor:
        return residual.flip(0).cumsum(0).flip(0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Blockwise(Correction):
    """One Jacobian a block, see the module.

    Attributes:
        slope: `H J` of each block, leaves `(count, *batch, ...)`.
        growth: `G` of each block.
        parts: which part of its block lies before the end of each step, `(count, length, *samples, 1, ...)`.
    """

    cut: Cut
    slope: Structure
    growth: Structure
    parts: Tensor

    @classmethod
    def of(cls, cut: Cut, slope: Structure, parts: Tensor) -> Self:
        """From the slopes; leaves of a structure are linear in the map, so maps are added leaf by leaf."""
        square = slope.compose(slope)
        growth = slope.from_leaves(*(torch.add(one, two, alpha=0.5) for one, two in zip(slope.leaves(), square.leaves(), strict=True)))
        return cls(cut=cut, slope=slope, growth=growth, parts=parts)

    def apply(self, residual: Tensor) -> Tensor:
        return self.cut.join(_carry(self.cut.split(residual), self.slope, self.growth, self.parts))

    def apply_adjoint(self, residual: Tensor) -> Tensor:
        slope, growth = (maps.adjoint().map(lambda leaf: leaf.flip(0)) for maps in (self.slope, self.growth))
        # Seen from the end, a step ends where it starts seen from the beginning.
        starts = torch.cat((torch.zeros_like(self.parts[:, :1]), self.parts[:, :-1]), dim=1)
        turned = _carry(self.cut.split(residual).flip(0, 1), slope, growth, 1 - starts.flip(0, 1))
        return self.cut.join(turned.flip(0, 1))


def _carry(residual: Tensor, slope: Structure, growth: Structure, parts: Tensor) -> Tensor:
    """Corrections `(count, length, *state)` from residuals of that shape."""
    sums = residual.cumsum(1)
    ends = sums[:, -1]
    terms = slope.apply_add((sums.sum(1) - ends) / sums.shape[1], ends)
    start = ENTRIES.get(type(growth), _entries)(growth, terms)
    return torch.addcmul(sums + start.unsqueeze(1), growth.apply(start).unsqueeze(1), parts)


def _entries(growth: Structure, terms: Tensor) -> Tensor:
    """Corrections at the starts of blocks, from what each block adds: `d[c + 1] = d[c] + G d[c] + terms[c]`."""
    entry = torch.zeros_like(terms[0])
    entries = [entry]
    make = growth.from_leaves
    for leaves, term in zip(zip(*(leaf[:-1].unbind(0) for leaf in growth.leaves()), strict=True), terms[:-1].unbind(0), strict=True):
        entry = make(*leaves).apply_add(entry, entry + term)
        entries.append(entry)
    return torch.stack(entries)


def _dense_entries(growth: Structure, terms: Tensor) -> Tensor:
    """The same for matrices in one operation a block, which are a third of the time of small solves."""
    (matrix,) = growth.leaves()
    count, size = terms.shape[0], terms.shape[-1]
    maps = (matrix + torch.eye(size, dtype=matrix.dtype, device=matrix.device)).reshape(count, -1, size, size)
    columns = terms.reshape(count, -1, size, 1)
    entry = torch.zeros_like(columns[0])
    entries = [entry]
    for one, column in zip(maps[:-1].unbind(0), columns[:-1].unbind(0), strict=True):
        entry = torch.baddbmm(column, one, entry)
        entries.append(entry)
    return torch.stack(entries).view(terms.shape)


ENTRIES: dict[type[Structure], Callable[[Structure, Tensor], Tensor]] = {Dense: _dense_entries}
