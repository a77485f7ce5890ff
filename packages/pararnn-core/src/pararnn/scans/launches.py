"""Which kernel the diagonal scan on a GPU launches, and how large its tiles are."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

Variant = Literal["walk", "lookback", "chunks"]

# Programs for each processor that keep the memory busy while all of them walk through time.
ENOUGH = 2
# The bytes of maps and terms that a tile holds in registers.
WALK_TILE = 8 * 32 * 32
LOOKBACK_TILE = 8 * 128 * 32
# Of each thread, so that several programs fit on a processor and one computes while another waits.
REGISTERS = 128
TILES = 8
# Groups of programs no longer than this are folded at once.
LARGEST_GROUP = 64


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A kernel and its sizes: steps and channels of a tile, and warps.

    `stages` are those of the pipeline of `walk` and `chunks`; of the other two, `group` counts the programs of a group, `registers` those a thread
    may have, and `tiles` those of a program in `chunks`.
    """

    variant: Variant
    block_time: int
    block_state: int
    warps: int
    stages: int = 3
    group: int = 2
    registers: int | None = None
    tiles: int = 1

    @property
    def steps(self) -> int:
        """How many steps a program of `lookback` or `chunks` owns."""
        return self.block_time * self.tiles


def launch_for(sequences: int, longest: int, steps: int, size: int, *, itemsize: int, processors: int) -> Launch:
    """The launch for `sequences` of `longest` steps at most and `steps` in all, with `size` channels of `itemsize` bytes.

    With many lanes a program for each block of channels, which walks through time, keeps the memory busy. With few, programs share the time.
    """
    walk = walking(size, itemsize=itemsize)
    # Short sequences end early, so programs that work at the same time are what counts, not all of them.
    busy = steps / max(longest, 1) * math.ceil(size / walk.block_state)
    if longest <= 2 * walk.block_time or busy >= ENOUGH * processors:
        return walk
    return looking_back(longest, size, itemsize=itemsize)


def walking(size: int, *, itemsize: int) -> Launch:
    """A program walks time in tiles of 32 steps."""
    block_state = min(32, power_of_two(size))
    return Launch(variant="walk", block_time=max(8, min(64, WALK_TILE // (2 * itemsize * block_state))), block_state=block_state, warps=1)


def looking_back(longest: int, size: int, *, itemsize: int) -> Launch:
    """Each tile is a program; those of one sequence form groups of about as many tiles as there are groups."""
    block_state = min(32, power_of_two(size))
    block_time = max(32, min(1024, LOOKBACK_TILE // (2 * itemsize * block_state)))
    launch = Launch(variant="lookback", block_time=block_time, block_state=block_state, warps=8, registers=REGISTERS)
    return replace(launch, group=group_of(longest, block_time))


def in_chunks(longest: int, size: int, *, itemsize: int) -> Launch:
    """Chunks of eight tiles are programs, and form groups as the tiles of `looking_back` do."""
    launch = replace(walking(size, itemsize=itemsize), variant="chunks", warps=4, stages=4, tiles=TILES, registers=REGISTERS)
    return replace(launch, group=group_of(longest, launch.steps))


def group_of(longest: int, steps: int) -> int:
    """Programs of a group: all of a sequence where they are few, else a power of two about the root of their number."""
    programs = math.ceil(longest / steps)
    return max(2, power_of_two(programs if programs <= LARGEST_GROUP else min(LARGEST_GROUP, math.isqrt(programs))))


def power_of_two(size: int) -> int:
    """The smallest power of two that is not below `size`."""
    return 1 << max(0, size - 1).bit_length()
