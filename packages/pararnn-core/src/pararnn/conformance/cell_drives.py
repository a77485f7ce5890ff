"""Checks of a cell's drive: it knows no future, no other sequence, and of each time only that time's sample."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pararnn.conformance.comparison import difference
from pararnn.conformance.samples import mode, modes, named_leaves, sized, stepped
from pararnn.errors import ConformanceError
from pararnn.solver import drive as drives

BATCH, TIME = 3, 8


def check_drive_is_causal(cell: Any, x: Tensor) -> None:
    """Drive and states up to a time do not depend on later inputs."""
    x = sized(x, BATCH, TIME)
    kept = TIME // 2
    changed = torch.cat((x[:, :kept], _others(x)[:, kept:]), dim=1)
    for name in modes(cell):
        leaves, moved = _leaves(cell, x), _leaves(cell, changed)
        for leaf, value in leaves.items():
            past = slice(kept if drives.is_timed(value) else None)
            place = (slice(None), past) if drives.is_timed(value) else (past,)
            if (how := difference(moved[leaf][place], value[place])) is not None:
                raise ConformanceError(
                    f"the future leaks into the past: the drive ({leaf}) of the first {kept} steps differs {how} when only later inputs "
                    f"change ({name}); flips, centred windows and statistics over time cannot be part of a drive"
                )
    with mode(cell, training=False):
        how = difference(stepped(cell, changed)[:, :kept], stepped(cell, x)[:, :kept])
    if how is not None:
        raise ConformanceError(f"the future leaks into the past: the first {kept} states differ {how} when only later inputs change")


def check_drive_keeps_sequences_apart(cell: Any, x: Tensor) -> None:
    """The drive of a sequence does not depend on its neighbours in the batch."""
    x = sized(x, BATCH, TIME)
    changed = torch.cat((x[:1], _others(x)[1:]))
    for name in modes(cell):
        moved = _leaves(cell, changed)
        for leaf, value in _leaves(cell, x).items():
            rows = slice(1) if drives.is_timed(value) else slice(None)
            if (how := difference(moved[leaf][rows], value[rows])) is not None:
                raise ConformanceError(
                    f"the drive leaks across the batch: that ({leaf}) of one sequence differs {how} when only other sequences change ({name}); "
                    "statistics over a batch (BatchNorm) cannot be part of a drive, LayerNorm can"
                )


def check_drive_takes_one_sample_at_a_time(cell: Any, x: Tensor) -> None:
    """The drive of a sample alone is the one it has within its sequence, which decoding and packed sequences rely on."""
    x = sized(x, BATCH, TIME)
    with mode(cell, training=False):
        for leaf, value in _leaves(cell, x).items():
            columns = [_leaves(cell, x[:, time : time + 1])[leaf] for time in range(TIME)]
            alone = torch.cat(columns, dim=1) if drives.is_timed(value) else columns[0]
            if (how := difference(alone, value)) is not None:
                raise ConformanceError(
                    f"the drive ({leaf}) of samples one at a time and of the sequence differ {how}; a drive may not look back either, "
                    "or decoding and packed sequences give other states: keep what is remembered in the state, or prepare x before the cell"
                )


def _leaves(cell: Any, x: Tensor) -> dict[str, Tensor]:
    """The leaves of the drive; what `drive` draws at random is drawn alike each time."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        return named_leaves(cell.drive(x))


def _others(x: Tensor) -> Tensor:
    """Other inputs than `x`, made of its samples."""
    return x.roll(1, dims=0).roll(1, dims=1)
