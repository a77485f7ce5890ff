"""Cutting time into intervals of equal length, and putting states together again.

Intervals never cross from one packed sequence into the next; the last of each sequence repeats its last step, so that what is computed past the
end is computed from valid data, and is dropped.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from pararnn.cell import Drive
from pararnn.scans.edges import shift
from pararnn.scans.segments import Offsets
from pararnn.solver import drive as drives


@dataclass(frozen=True, kw_only=True)
class Partition:
    """`count` intervals of `interval` steps each.

    `offsets` tells which intervals belong to which packed sequence, None without packing. For packed sequences, `positions` `(count, interval)`
    says where each step lies along time, `inside` whether it belongs to its sequence, and `owner` `(count,)` which sequence that is.
    """

    length: int
    interval: int
    count: int
    offsets: Offsets | None = None
    positions: Tensor | None = None
    inside: Tensor | None = None
    owner: Tensor | None = None

    @staticmethod
    def of(length: int, interval: int, offsets: Offsets | None, device: torch.device) -> Partition:
        """The partition of `length` steps, packed by `offsets`, into intervals of `interval`."""
        if offsets is None:
            return Partition(length=length, interval=interval, count=-(-length // interval))
        lengths = [end - start for start, end in itertools.pairwise(offsets)]
        counts = [-(-steps // interval) for steps in lengths]
        starts = [start + interval * piece for start, pieces in zip(offsets, counts, strict=False) for piece in range(pieces)]
        ends = [end for end, pieces in zip(offsets[1:], counts, strict=True) for _ in range(pieces)]
        owner = [segment for segment, pieces in enumerate(counts) for _ in range(pieces)]
        steps = torch.tensor(starts, device=device).unsqueeze(1) + torch.arange(interval, device=device)
        last = torch.tensor(ends, device=device).unsqueeze(1) - 1
        bounds = [0]
        for pieces in counts:
            bounds.append(bounds[-1] + pieces)
        return Partition(
            length=length,
            interval=interval,
            count=bounds[-1],
            offsets=tuple(bounds),
            positions=torch.minimum(steps, last),
            inside=steps <= last,
            owner=torch.tensor(owner, dtype=torch.int64, device=device),
        )

    def cut(self, drive: Drive) -> Drive:
        """Leaves `(rows, time, ...)` as `(interval, rows, count, ...)`, each step contiguous."""
        return drives.map_timed(self._cut, drive)

    def _cut(self, leaf: Tensor) -> Tensor:
        if self.positions is not None:
            return leaf[:, self.positions].movedim(2, 0).contiguous()
        if self.count == 1:
            return leaf.movedim(1, 0).unsqueeze(2)
        missing = self.count * self.interval - self.length
        whole = torch.cat((leaf, leaf[:, -1:].expand(-1, missing, *leaf.shape[2:])), dim=1) if missing else leaf
        pieces: Tensor = whole.unflatten(1, (self.count, self.interval))
        return pieces.movedim(2, 0).contiguous()

    def join(self, states: list[Tensor]) -> Tensor:
        """States of each step of the intervals, `interval` of `(rows, count, state)`, as `(rows, time, state)`."""
        if self.positions is None or self.inside is None:
            return torch.stack(states, dim=2).flatten(1, 2)[:, : self.length]
        stacked = torch.stack(states, dim=2)
        result = stacked.new_zeros(stacked.shape[0], self.length, stacked.shape[-1])
        return result.index_copy(1, self.positions[self.inside], stacked[:, self.inside])

    def shift(self, ends: Tensor, initial: Tensor | None) -> Tensor:
        """What each interval receives from the one before; `initial` `(rows, segments, state)`, or zero, where a sequence begins."""
        return shift(ends, initial, self.offsets, reverse=False)

    def spread(self, per_segment: Tensor) -> Tensor:
        """`(rows, segments, ...)` to each interval of the segment, `(rows, count or 1, ...)`."""
        return per_segment if self.owner is None else per_segment[:, self.owner]

    def largest(self, per_interval: Tensor, segments: int) -> Tensor:
        """The largest of `(rows, count)` in each segment, `(rows, segments)`; zero for empty segments."""
        if self.owner is None:
            return per_interval.amax(1, keepdim=True)
        empty = per_interval.new_zeros(per_interval.shape[0], segments)
        return empty.scatter_reduce(1, self.owner.expand(per_interval.shape), per_interval, "amax")
