"""Which kernel the scans on a GPU launch, and how large its tiles and chunks are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Variant = Literal["stream", "walk", "chain", "tiles", "lines", "linked"]

# A program is a warp, and a lane is a thread: what makes the kernels walk as the definition does.
LANES = 32
# Programs for each processor that keep the memory busy while all of them walk through time.
ENOUGH = 2
# Programs for each processor from which on the chain is faster than the stream where sequences are long: it lies between 2.9 and 7.8, which were
# measured at 4096 and 8192 steps.
CROWDED, LONG = 5, 4096
# The bytes of maps that a tile holds for each lane, in registers, beside as many of terms; of a walk four tiles are there at once.
WALK_TILE = 64
TILE = 256
# Of each thread, so that a processor holds a dozen programs, which wait for each other and for memory at different times.
REGISTERS = 168
GROUP = 8
# Of the stream: the bytes that a thread reads at once, those of a row of a tile, and those of maps that are on their way forward and backward,
# where three tensors are read; tiles are lower then. Measured (docs/benchmarks/gpu_scan.py): half of such a row takes a third more time.
VECTOR, ROW = 16, 128
AHEAD, AHEAD_OF_COSTATES = 8192, 6144
# Of the chain: warps of a program, each of as many steps as a tile has above, and the tiles of a link, of which there are about as many as links.
# Measured: one lane for each thread and 64 steps in its registers take half the instructions of 4 lanes and 8 steps; two or eight warps are slower.
WARPS = 4
LINK, LONG_LINK = 16, 32
# Of lines, whose steps lie next to each other: the steps of a tile, the lines for each processor that keep the memory busy, and the most tiles of a
# link. Measured: twice the warps, or half the tile with as many, take up to half more time; 512 lines on 132 processors are faster alone than linked,
# 64 are three times as fast linked; there a link of 64 tiles takes a tenth less time than links of 8 or 16.
LINE_TILE, ENOUGH_LINES, LINE_LINK = 2048, 3, 64
# Chunks of blocks are at least so long; with fewer steps than two of them, or enough programs without, the walk has but one.
SHORTEST_CHUNK = 32


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A kernel and its sizes: steps and channels of a tile, and warps of a program.

    Of `tiles`, `chain` and `linked` also the tiles of a group or link, and registers of a thread; of all but `walk` and `tiles` the groups of a
    tile; of `stream` and `lines` how many tiles are on their way or at work.
    """

    variant: Variant
    block_time: int
    block_state: int = LANES
    group: int = GROUP
    registers: int | None = None
    groups: int = 1
    stages: int = 3
    warps: int = 1


def launch_for(
    sequences: int, longest: int, steps: int, size: int, *, itemsize: int, processors: int, costate: bool = False, is_complex: bool = False
) -> Launch:
    """The launch for `sequences` of `longest` steps at most and `steps` in all, with `size` channels of `itemsize` bytes.

    With many lanes a program for each block of channels, which goes through time, keeps the memory busy; with few, programs share the time. The
    stream and the chain are for real numbers.
    """
    stream, chain = streaming(itemsize=itemsize, costate=costate), in_chain(longest, itemsize=itemsize, costate=costate)
    busy = programs_of(longest, steps, size, lanes=stream.block_state) / processors
    if not is_complex and busy >= ENOUGH:
        return chain if busy >= CROWDED and longest >= LONG else stream
    walk = walking(itemsize=itemsize)
    if longest <= 4 * walk.block_time or is_busy(longest, steps, size, processors):
        return walk
    return in_tiles(itemsize=itemsize) if is_complex else chain


def is_busy(longest: int, steps: int, size: int, processors: int) -> bool:
    """Whether programs that walk whole sequences keep the memory busy."""
    return programs_of(longest, steps, size) >= ENOUGH * processors


def programs_of(longest: int, steps: int, size: int, *, lanes: int = LANES) -> float:
    """Programs that walk whole sequences at the same time: short sequences end early."""
    return steps / max(longest, 1) * math.ceil(size / lanes)


def walking(*, itemsize: int) -> Launch:
    """A program walks time in tiles, of 16 steps in single precision."""
    return Launch(variant="walk", block_time=max(4, WALK_TILE // max(4, itemsize)))


def streaming(*, itemsize: int, costate: bool = False) -> Launch:
    """A program goes through time in tiles, of 32 steps in single precision, or 16 where costates are computed."""
    groups = LANES * VECTOR // ROW
    height = 4 if costate or itemsize < 4 else 8
    stages = 1 + (AHEAD_OF_COSTATES if costate else AHEAD) // (ROW * groups * height)
    return Launch(variant="stream", block_time=groups * height, block_state=ROW // itemsize, groups=groups, stages=stages)


def in_chain(longest: int, *, itemsize: int, costate: bool = False) -> Launch:
    """Each tile is a program of four warps, each of 64 steps in single precision, or of 32 where costates are computed."""
    height = TILE // max(4, itemsize) // (2 if costate else 1)
    tiles = math.ceil(longest / (WARPS * height))
    link = LINK if tiles <= LINK * LINK else LONG_LINK
    return Launch(variant="chain", block_time=WARPS * height, group=link, registers=REGISTERS, groups=WARPS, warps=WARPS)


def in_tiles(*, itemsize: int) -> Launch:
    """Each tile is a program, of 64 steps in single precision."""
    return Launch(variant="tiles", block_time=max(8, TILE // max(4, itemsize)), registers=REGISTERS)


def along_for(lines: int, length: int, *, itemsize: int, processors: int, costate: bool = False) -> Launch:
    """The launch for `lines` of `length` steps that lie next to each other in memory."""
    if lines >= ENOUGH_LINES * processors or length <= LINE_TILE:
        return in_lines(length, itemsize=itemsize, costate=costate)
    return linked(length, itemsize=itemsize)


def in_lines(length: int, *, itemsize: int, costate: bool = False) -> Launch:
    """Each line is a program, in tiles of 2048 steps or what holds the line; forward, the next tile is on its way while one is scanned."""
    height = max(2, VECTOR // max(4, itemsize))
    time = min(LINE_TILE, max(LANES * height, 1 << max(0, length - 1).bit_length()))
    stages = 1 if costate or itemsize > 4 or length <= time else 2
    return Launch(variant="lines", block_time=time, block_state=1, groups=time // height, stages=stages, warps=max(1, time // (LANES * 16)))


def linked(length: int, *, itemsize: int) -> Launch:
    """Each tile of a line is a program; all tiles are one link, up to as many as are read at once."""
    height = max(2, VECTOR // max(4, itemsize))
    link = min(LINE_LINK, max(2, 1 << max(0, math.ceil(length / LINE_TILE) - 1).bit_length()))
    return Launch(variant="linked", block_time=LINE_TILE, block_state=1, group=link, groups=LINE_TILE // height, warps=WARPS)


def chunk_of(longest: int, steps: int, channels: int, *, processors: int) -> int:
    """Steps of a chunk of the block-diagonal scan: about as many as there are chunks in a sequence, or all where there are programs enough."""
    if longest < 2 * SHORTEST_CHUNK or is_busy(longest, steps, channels, processors):
        return max(longest, 1)
    return max(SHORTEST_CHUNK, 1 << max(0, math.isqrt(longest) - 1).bit_length())
