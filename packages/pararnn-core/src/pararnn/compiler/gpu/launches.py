"""Which kernels solve forward, and how large their tiles are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Variant = Literal["walk", "shoot", "across"]
# Steps of an interval from which on sweeps of `across` look whether they have met the one before, and after how many steps each, at most.
MEETING, CHECKED = 128, 32


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A way to solve, and its sizes.

    Attributes:
        variant: `walk`: a program walks a sequence; `shoot`: a program takes many intervals of a sequence at once; `across`: programs share the
            intervals of a sequence.
        block_state: channels of a program.
        warps: of a program.
        ahead: rows that are read before they are needed; divides `interval`.
        interval: steps of an interval, where there are any.
        count: intervals of a program.
        sweeps: of `across`, the sweeps that are launched.
    """

    variant: Variant
    block_state: int
    warps: int
    ahead: int
    interval: int = 0
    count: int = 1
    sweeps: int = 0


def power_of_two(size: int) -> int:
    """The smallest power of two that is not below `size`."""
    return 1 << max(0, size - 1).bit_length()


def ahead_of(interval: int, most: int) -> int:
    """The largest power of two up to `most` that divides `interval`."""
    ahead = most
    while interval % ahead:
        ahead //= 2
    return ahead
