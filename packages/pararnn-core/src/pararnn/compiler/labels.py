"""Which number stands where in a tensor that holds several numbers a channel side by side.

*Labels* of a tensor are integers `(*shape, 3)`: for each place the part that stands there, and its row and channel; `ANY` for a row or channel where
the number is the same along that axis. Rows and channels are told by size as long as nothing else says it, and labels are what refutes a guess: a cut
through a part, or two parts shifted against each other, leaves channels that do not run from the first to the last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

PART, ROW, CHANNEL = range(3)
ANY = -1
# Numbers a channel that a tensor may hold; more are a matrix rather than gates.
MOST = 16
# Rows while tracing: primes, so that no number of parts, and no width of them, is mistaken for the number of rows.
ROWS = (17, 19)
CUT = "numbers that lie side by side are taken apart as wholes, each with all its channels in order"


class MixedError(Exception):
    """Parts do not lie as the channels of a state do; the message is empty where the operation says it all."""


def parts_of(shape: Sequence[int], channels: int) -> int:
    """How many numbers a channel a shape `(parts * channels,)` or `(parts, channels)` has; 1 for any other, for too many, and without channels."""
    if len(shape) == 2 and shape[1] == channels:
        count = shape[0]
    else:
        count = shape[0] // channels if channels and len(shape) == 1 and not shape[0] % channels else 1
    return count if 1 < count <= MOST else 1


@dataclass(frozen=True)
class Axes:
    """The sizes by which shapes tell rows from channels; a single channel has no axis."""

    rows: int
    channels: int

    @staticmethod
    def telling(channels: int) -> Axes:
        """Axes of so many channels, with rows of another size."""
        return Axes(ROWS[1] if channels == ROWS[0] else ROWS[0], channels)

    def of(self, shape: Sequence[int]) -> tuple[str, ...] | None:
        """The axes that a shape has, in order; None where it has one twice or a size that is neither."""
        names = {self.rows: "rows"} | ({self.channels: "channels"} if self.channels != 1 else {})
        sizes = [size for size in shape if size != 1]
        if len(set(sizes)) < len(sizes) or not set(sizes) <= set(names):
            return None
        return tuple(names[size] for size in sizes)

    def shown(self, shape: Sequence[int]) -> str:
        """A shape for a reader, who never chose how many rows there are while tracing."""
        sizes = ["rows" if size == self.rows else str(size) for size in shape]
        return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"

    def __str__(self) -> str:
        return f"the state has {self.channels} channel{'' if self.channels == 1 else 's'}"

    def side_by_side(self, shape: Sequence[int], *, timed: bool) -> Tensor:
        """Labels of `(rows, *inner)`, or of `shape` as a whole, whose parts lie one behind the other."""
        inner = tuple(shape[1:]) if timed else tuple(shape)
        place = torch.arange(math.prod(inner), device="cpu").reshape(inner)
        labels = blank(inner)
        labels[..., PART] = place // self.channels
        if self.channels != 1:
            labels[..., CHANNEL] = place % self.channels
        if not timed:
            return labels
        labels = labels.expand(self.rows, *labels.shape).clone()
        labels[..., ROW] = running(labels.shape[:-1], 0, self.rows)
        return labels

    def settled(self, labels: Tensor) -> Tensor | None:
        """`labels` with rows and channels where sizes tell them, of whole parts; None where a part is cut, or shifted against another."""
        shape = labels.shape[:-1]
        if not labels.numel():
            return None
        labels = labels.clone()
        for axis, period in ((ROW, self.rows), (CHANNEL, self.channels)):
            if period == 1:
                continue
            dims = [dim for dim, size in enumerate(shape) if (size == period if axis == ROW else not size % period)]
            if dims and bool((labels[..., axis] == ANY).all()):
                labels[..., axis] = running(shape, dims[-1], period)
            if bool((labels[..., axis] == ANY).all()):
                continue
            if not any(self._is_whole(labels, axis, dim, period) for dim in dims):
                return None
        return labels

    def _is_whole(self, labels: Tensor, axis: int, dim: int, period: int) -> bool:
        shape = labels.shape[:-1]
        parts = labels[..., PART].unflatten(dim, (shape[dim] // period, period))
        return torch.equal(labels[..., axis], running(shape, dim, period)) and bool((parts == parts.narrow(dim + 1, 0, 1)).all())


def blank(shape: Sequence[int]) -> Tensor:
    """Labels of a single part that is the same everywhere."""
    labels = torch.full((*shape, 3), ANY, dtype=torch.int32, device="cpu")
    labels[..., PART] = 0
    return labels


def running(shape: Sequence[int], dim: int, period: int) -> Tensor:
    """`0, 1, ..., period - 1`, over and over, along `dim` of `shape`."""
    sizes = [1] * len(shape)
    sizes[dim] = shape[dim]
    return (torch.arange(shape[dim], dtype=torch.int32, device="cpu") % period).reshape(sizes).expand(*shape)


def varies(labels: Tensor, axis: int, dim: int) -> bool:
    """Whether labels of an axis differ along a dimension."""
    return not bool((labels[..., axis] == labels[..., axis].narrow(dim, 0, 1)).all())


def merged(first: Tensor, second: Tensor) -> Tensor | None:
    """Labels of places where two numbers meet, parts those of the first; None where these are of different rows or channels."""
    labels = first.clone()
    for axis in (ROW, CHANNEL):
        one, other = first[..., axis], second[..., axis]
        if bool(((one != ANY) & (other != ANY) & (one != other)).any()):
            return None
        labels[..., axis] = torch.where(one == ANY, other, one)
    return labels


def distinct(parts: Tensor) -> tuple[list[list[int]], Tensor]:
    """The different columns of `(n, *shape)`, and which of them stands at each place of `shape`."""
    columns, which = torch.unique(parts.reshape(len(parts), -1), dim=1, return_inverse=True)
    return columns.T.tolist(), which.reshape(parts.shape[1:])
