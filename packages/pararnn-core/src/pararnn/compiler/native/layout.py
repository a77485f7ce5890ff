"""How work is cut into tasks: a block of channels of one sequence, or all channels of several; and how many steps a tile holds."""

from __future__ import annotations

import functools
from dataclasses import dataclass

# Numbers of a tile, so that all tiles of a task stay in the first levels of the cache; a backward pass does more for each tile.
TILE, BACKWARD = 1024, 4096
# Steps of a tile, at least and at most.
STEPS = (4, 512)
# Channels of a task, where there are enough sequences for every thread, and where there are not.
WIDE, NARROW, ENOUGH = 256, 64, 8
# Lanes of a task that is put together from sequences of few channels, in vectors, and of a shooting pass.
TOGETHER, SHOOTING = 4, 8
# Numbers that a window of shooting may hold.
WINDOW = 1 << 18


@dataclass(frozen=True)
class Layout:
    """Channels of a task, sequences side by side in it, steps of a tile, and intervals of a window (0 for a walk)."""

    block: int
    together: int
    capacity: int
    window: int


@functools.lru_cache(4096)
def walking(sequences: int, state: int, longest: int, itemsize: int, tile: int = TILE) -> Layout:
    """Tasks of a walk; the sizes alone decide, so that results do not depend on the number of threads."""
    vector = 64 // itemsize
    if not alone(state, itemsize):
        together = max(1, min(sequences, TOGETHER * vector // state))
        return Layout(state, together, _steps(state * together, longest, tile), 0)
    block = _block(state, WIDE if sequences >= ENOUGH else NARROW, vector)
    return Layout(block, 1, _steps(block, longest, tile), 0)


def alone(state: int, itemsize: int) -> bool:
    """Whether a walk takes sequences of so many channels one by one, so that what is one number a step serves all lanes of a task."""
    return state >= 2 * (64 // itemsize)


@functools.lru_cache(4096)
def shooting(state: int, longest: int, interval: int, itemsize: int) -> Layout:
    """Tasks of a shooting pass with intervals of `interval` steps."""
    vector = 64 // itemsize
    block = _block(state, vector, vector)
    window = max(2, min(SHOOTING * vector // block, WINDOW // max(1, interval * block), -(-longest // interval)))
    return Layout(block, 1, _steps(block, longest, TILE), window)


def _block(state: int, most: int, vector: int) -> int:
    """Equal blocks of whole vectors, as far as that goes."""
    if state <= most:
        return state
    blocks = -(-state // most)
    return -(-state // (blocks * vector)) * vector


def _steps(lanes: int, longest: int, tile: int) -> int:
    return max(1, min(longest, max(STEPS[0], min(STEPS[1], tile // lanes))))
