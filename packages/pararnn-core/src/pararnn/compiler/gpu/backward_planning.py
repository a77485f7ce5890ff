"""How the gradients of a solve are computed on a GPU: by which kernels, and how they are cut; chosen from sizes alone, whatever the solve did.

The numbers follow an H200 with the step of a gated cell in single precision; the bounds between the ways are partly estimated. A walk takes 7 ps
for each step and channel where channels are many, and is taken to need 100 ns a step however few they are. Intervals take 12 ps, because all is read
twice, and a few microseconds for more launches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Channels of all sequences, for each processor, from which on a walk takes all the memory can give.
MANY = 80
# A walk of so few steps is over before intervals have been composed.
SHORT = 96
# Warps for each processor that keep memory busy, where intervals can be made for them.
WARPS = 16
# Steps of an interval, at least; and those that twice as many warps are worth having for, where each takes many registers.
SHORTEST, LONG = 16, 192
# Steps that one window of a tile takes, and its channels for each processor: more of either take several rounds.
WINDOW, FEW = 512, 16
# Intervals that each program folds by itself, at most.
FOLDED = 64


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The kernels of a backward pass and their sizes.

    Attributes:
        variant: `walk`: a program walks back through a sequence; `tile`: a program takes many intervals of a sequence at once; `across`: intervals
            are programs, and are composed before.
        block_state: channels of a program.
        warps: of a program.
        ahead: steps that a walk reads ahead; of `tile` the steps of an interval.
        intervals: of a program of `tile` at once; of `across` all of a sequence.
    """

    variant: Literal["walk", "tile", "across"]
    block_state: int
    warps: int
    ahead: int
    intervals: int = 1

    @property
    def folds(self) -> bool:
        """Whether each program of `across` finds by itself what enters its interval: where they are few, a launch less."""
        return self.variant == "across" and self.intervals <= FOLDED


def cut_for(sequences: int, longest: int, state: int, *, itemsize: int, processors: int, crowded: bool = False) -> Cut:
    """The cut for `sequences` of `longest` steps at most, with `state` channels of `itemsize` bytes in the carry; `crowded` as in `parts`."""
    # Half as many rows where each takes many registers.
    ahead = (32 if crowded else 64) // itemsize
    lanes = sequences * state
    if longest <= SHORT or lanes >= MANY * processors:
        block_state = min(64 if lanes >= MANY * processors else 32, power_of_two(state))
        return Cut(variant="walk", block_state=block_state, warps=max(1, block_state // 32), ahead=ahead)
    if longest <= WINDOW and lanes <= FEW * processors and not crowded:
        block_state, steps = min(8, power_of_two(state)), 16 // itemsize
        intervals = min(128, power_of_two(-(-longest // steps)))
        return Cut(variant="tile", block_state=block_state, warps=max(1, intervals * block_state // 64), ahead=steps, intervals=intervals)
    block_state = min(32, power_of_two(state))
    blocks = sequences * -(-state // block_state)
    intervals = max(2, min(longest // SHORTEST, round(WARPS * processors / blocks)))
    if crowded and longest >= 2 * intervals * LONG:
        intervals *= 2
    if intervals > 8:
        # Folding takes eight at a time, and scans work on powers of two.
        intervals = intervals // 8 * 8 if intervals < FOLDED + 8 else power_of_two(intervals + 1) // 2
    return Cut(variant="across", block_state=block_state, warps=1, ahead=ahead // 2, intervals=intervals)


def power_of_two(size: int) -> int:
    """The smallest power of two that is not below `size`."""
    return 1 << max(0, size - 1).bit_length()
