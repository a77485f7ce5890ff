"""Packed sequences: several sequences lie one after the other along time, told apart by their offsets.

`offsets` is `(0, end of the first, ..., end of the last)`; equal neighbours are an empty segment.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from pararnn.errors import DTypeError, InputError, ShapeError

Offsets: TypeAlias = tuple[int, ...]
# What CUDA graphs copy offsets from, as long as the process lives.
_recorded: list[Tensor] = []


@dataclass(frozen=True)
class Group:
    """Segments of similar length, padded to the longest of them.

    `positions` and `inside` are `(segments, steps)`: where each step of each segment lies along time, and whether it belongs to it.
    Steps past the end repeat the last one, so that what is read there is valid data.
    """

    segments: Tensor
    positions: Tensor
    inside: Tensor


def by_length(offsets: Offsets, *, reverse: bool = False, device: torch.device | None = None) -> list[Group]:
    """The non-empty segments in groups that differ in length by less than a factor of two, so that padding at most doubles the work."""
    groups: dict[int, list[int]] = {}
    for segment, (start, end) in enumerate(itertools.pairwise(offsets)):
        if end > start:
            groups.setdefault((end - start).bit_length(), []).append(segment)
    return [_group(offsets, segments, reverse=reverse, device=device) for segments in groups.values()]


def _group(offsets: Offsets, segments: list[int], *, reverse: bool, device: torch.device | None) -> Group:
    starts = torch.tensor([offsets[segment] for segment in segments], device=device)
    ends = torch.tensor([offsets[segment + 1] for segment in segments], device=device)
    steps = torch.arange(int((ends - starts).max()), device=device)
    inside = steps < (ends - starts).unsqueeze(1)
    forward = torch.minimum(starts.unsqueeze(1) + steps, ends.unsqueeze(1) - 1)
    backward = torch.maximum(ends.unsqueeze(1) - 1 - steps, starts.unsqueeze(1))
    return Group(torch.tensor(segments, device=device), backward if reverse else forward, inside)


def check_offsets(cu_seqlens: Tensor) -> None:
    """Raise `DTypeError` or `ShapeError` unless `cu_seqlens` is a one-dimensional integer tensor with at least one entry."""
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.is_floating_point() or cu_seqlens.is_complex() or cu_seqlens.dtype == torch.bool:
        kind = cu_seqlens.dtype if isinstance(cu_seqlens, Tensor) else type(cu_seqlens).__name__
        raise DTypeError(f"cu_seqlens must be an integer tensor, got {kind}; pass torch.tensor([0, ...]) of int32 or int64")
    if cu_seqlens.ndim != 1 or cu_seqlens.numel() < 1:
        raise ShapeError(f"cu_seqlens must be one-dimensional with at least one entry, got shape {tuple(cu_seqlens.shape)}")


def as_offsets(cu_seqlens: Tensor, length: int) -> Offsets:
    """Cumulative lengths `(segments + 1,)` as integers, checked against the packed length.

    Raises:
        DTypeError: they are not integers.
        ShapeError: they are not one-dimensional.
        InputError: they do not start at 0, decrease, or do not end at `length`; or they lie on a GPU, where a CUDA graph is being recorded.
    """
    check_offsets(cu_seqlens)
    if cu_seqlens.is_cuda and torch.cuda.is_current_stream_capturing():
        raise InputError(
            "cu_seqlens lies on the GPU, and is read on the host, which cannot be while a CUDA graph is recorded (by torch.cuda.graph, or by "
            "torch.compile with mode='reduce-overhead'); keep it on the CPU: cu_seqlens.cpu()"
        )
    offsets = tuple(cu_seqlens.tolist())
    if offsets[0] != 0 or offsets[-1] != length:
        raise InputError(
            f"cu_seqlens runs from {offsets[0]} to {offsets[-1]}, but the packed sequence from 0 to {length}; "
            "give the start of each segment and the end of the last",
            offsets=offsets,
            length=length,
        )
    for index, (start, end) in enumerate(itertools.pairwise(offsets)):
        if end < start:
            raise InputError(f"cu_seqlens decreases from {start} to {end} at segment {index}; offsets must not decrease", offsets=offsets)
    return offsets


def on_device(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Offsets, or what follows from them, as a tensor on `device`; nothing waits for it."""
    if device.type != "cuda":
        return torch.tensor(numbers, dtype=torch.int64, device=device)
    pinned = torch.tensor(numbers, dtype=torch.int64, pin_memory=True)
    if torch.cuda.is_current_stream_capturing():
        # Every replay of the graph copies from here, so the memory must not go to somebody else.
        _recorded.append(pinned)
    return pinned.to(device, non_blocking=True)
