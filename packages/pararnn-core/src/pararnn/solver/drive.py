"""Drives: a tensor, or a named tuple of tensors, some of which run along the sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from pararnn.cell import Drive
from pararnn.errors import CellError


def leaves(drive: Drive) -> tuple[Tensor, ...]:
    """The tensors of a drive."""
    return (drive,) if isinstance(drive, Tensor) else tuple(drive)


def is_timed(leaf: Tensor) -> bool:
    """Whether a leaf runs along the sequence: `(batch, time, ...)` has at least three dimensions, a per-channel weight fewer."""
    return leaf.ndim >= 3


def map_timed(function: Callable[[Tensor], Tensor], drive: Drive) -> Drive:
    """The drive with `function` applied to the leaves that run along the sequence."""
    if isinstance(drive, Tensor):
        return function(drive)
    return rebuild(drive, (function(leaf) if is_timed(leaf) else leaf for leaf in drive))


def map_leaves(function: Callable[[Tensor], Tensor], drive: Drive) -> Drive:
    """The drive with `function` applied to every leaf."""
    return function(drive) if isinstance(drive, Tensor) else rebuild(drive, map(function, drive))


def rebuild(drive: Any, values: Any) -> Drive:
    """A drive of the same kind as `drive` with other tensors."""
    return drive._make(values) if hasattr(drive, "_make") else tuple(values)


def unbind(drive: Drive, dim: int) -> Iterator[Drive]:
    """The drive of each step, along dimension `dim` of the leaves that run along the sequence."""
    if isinstance(drive, Tensor):
        yield from drive.unbind(dim)
        return
    timed = [is_timed(leaf) for leaf in drive]
    columns = [leaf.unbind(dim) for leaf, runs in zip(drive, timed, strict=True) if runs]
    for values in zip(*columns, strict=True):
        step = iter(values)
        yield rebuild(drive, (next(step) if runs else leaf for leaf, runs in zip(drive, timed, strict=True)))


def batch_and_length(drive: Drive) -> tuple[int, int]:
    """Batch and time of the leaves that run along the sequence.

    Raises:
        CellError: it holds something else than tensors, no leaf runs along the sequence, or they differ.
    """
    found = None if isinstance(drive, dict) else leaves(drive)
    if found is None or not all(isinstance(leaf, Tensor) for leaf in found):
        kinds = "dict" if found is None else ", ".join(type(leaf).__name__ for leaf in found)
        raise CellError(f"a drive is a tensor or a named tuple of tensors, got {kinds}; leave out what a step does not need")
    shapes = {leaf.shape[:2] for leaf in found if leaf.ndim >= 3}
    if len(shapes) != 1:
        told = ", ".join(str(tuple(leaf.shape)) for leaf in found)
        raise CellError(f"the leaves of a drive that run along the sequence start with one (batch, time) each; got shapes {told}")
    ((batch, length),) = shapes
    return batch, length
