"""How many samples of each padded row count: one check for all forms in which lengths are given."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from pararnn.errors import DTypeError, InputError, ShapeError


class Checked(NamedTuple):
    """Lengths of all rows, int64 `(batch,)`, that `row_lengths` has made: a module hands them to those inside it, which need not look again."""

    counts: Tensor


Lengths: TypeAlias = Tensor | Sequence[int] | int | Checked


def row_lengths(lengths: Lengths | None, batch: int, length: int, device: torch.device) -> Tensor | None:
    """The lengths of all rows as an int64 tensor `(batch,)` on `device`; None where every row is whole.

    Args:
        lengths: one int for all rows, a list, tuple or tensor `(batch,)` or `(1,)` of ints, or None. Numbers of numpy are ints too.
        batch: rows of the input.
        length: samples of a row, padding included.
        device: where the mask will be needed.

    Values of a tensor are checked wherever that is possible: under `torch.compile` they are not known when the program is traced.

    Raises:
        DTypeError: lengths are no ints.
        ShapeError: not one length a row.
        InputError: a length is negative or exceeds `length`.
    """
    if lengths is None:
        return None
    if isinstance(lengths, Checked):
        return lengths.counts
    if isinstance(lengths, list | tuple):
        lengths = torch.tensor([_count(length) for length in lengths], dtype=torch.int64)
    if not isinstance(lengths, Tensor):
        if isinstance(lengths, bool) or not hasattr(lengths, "__index__"):
            raise DTypeError(f"lengths must be an int, or a list, tuple or tensor of one int a row, got {type(lengths).__name__}")
        lengths = _count(lengths)
        _within(lengths, lengths, length)
        return None if lengths == length else torch.full((batch,), lengths, dtype=torch.int64, device=device)
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise DTypeError(f"lengths count samples, but their dtype is {lengths.dtype}; use lengths.long(), or mask.sum(-1) of a mask")
    if lengths.ndim > 1 or (lengths.ndim == 1 and lengths.shape[0] not in (1, batch)):
        raise ShapeError(f"lengths has shape {tuple(lengths.shape)} for a batch of {batch}; it must be ({batch},)", shape=tuple(lengths.shape))
    if lengths.numel() and not torch.compiler.is_compiling():
        smallest, largest = torch.aminmax(lengths)
        _within(int(smallest), int(largest), length)
    return lengths.to(device=device, dtype=torch.int64).reshape(-1).expand(batch)


def mask(lengths: Tensor, length: int) -> Tensor:
    """`(batch, length)`, true at the samples that count."""
    return torch.arange(length, device=lengths.device) < lengths.unsqueeze(-1)


def _count(length: Any) -> int:
    """`length` as an int; numbers of numpy and scalar tensors are taken too."""
    try:
        if isinstance(length, bool):
            raise TypeError("a bool")
        return operator.index(length)
    except TypeError as error:
        raise DTypeError(f"lengths count samples, but one of them is {length!r}; pass ints, or the sum of a mask over time") from error


def _within(smallest: int, largest: int, length: int) -> None:
    if smallest < 0 or largest > length:
        found = f"{smallest}" if smallest == largest else f"from {smallest} to {largest}"
        raise InputError(f"lengths are {found}, but a row has {length} samples; they must lie in 0..{length}", lengths=(smallest, largest))
