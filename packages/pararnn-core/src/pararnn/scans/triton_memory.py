"""How tensors are handed to the kernels in Triton: where sequences and tiles lie along time, strides, and what numbers are carried in."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pararnn.scans.segments import Offsets, on_device

# Where the interpreter stands in for a GPU.
PROCESSORS = 132


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Where sequences lie along time: how many a row has, the steps of the longest, and where each begins and ends, None where it is the row."""

    count: int
    longest: int
    length: int
    offsets: Offsets | None

    @classmethod
    def of(cls, offsets: Offsets | None, length: int) -> Sequences:
        if offsets is None:
            return cls(count=1, longest=length, length=length, offsets=None)
        longest = max((end - start for start, end in itertools.pairwise(offsets)), default=0)
        return cls(count=len(offsets) - 1, longest=longest, length=length, offsets=offsets)

    def parts(self, steps: int) -> tuple[int, list[int], list[int]]:
        """Cut into parts of `steps` steps: how many, the first of each sequence and the end of the last, and the sequence of each."""
        bounds = (0, self.length) if self.offsets is None else self.offsets
        counts = [math.ceil((end - start) / steps) for start, end in itertools.pairwise(bounds)]
        firsts = list(itertools.accumulate(counts, initial=0))
        owners = [] if self.offsets is None else [segment for segment, count in enumerate(counts) for _ in range(count)]
        return firsts[-1], firsts, owners

    def tensors(self, *lists: list[int], stand_in: Tensor) -> tuple[Tensor, ...]:
        """The bounds, and other lists, on the device; where nothing is packed they are not read, and no copy is made."""
        if self.offsets is None:
            return (stand_in,) * (1 + len(lists))
        return tuple(on_device(numbers, stand_in.device) for numbers in (self.offsets, *lists))


def by_lanes(tensor: Tensor) -> Tensor:
    """A real tensor `(rows, time, state)`, copied where steps lie next to each other in memory and channels do not.

    Threads would follow the steps then, where the kernels mean them to follow the channels. Of such tiles the stream made wrong states in double
    precision, as Triton 3.6 compiled it for an H200.
    """
    if tensor.stride(1) != 1 or tensor.stride(2) == 1 or tensor.shape[2] == 1:
        return tensor
    if tensor.stride(2) == 0:
        # A number for all channels stays one, with room behind it.
        one = tensor[..., :1]
        return torch.cat((one, one), -1)[..., :1].expand_as(tensor)
    return tensor.contiguous()


def strided(tensor: Tensor) -> tuple[Any, ...]:
    """The tensor with its strides, complex numbers as pairs."""
    return (as_real(tensor), *(stride * (2 if tensor.is_complex() else 1) for stride in tensor.stride()))


def as_real(tensor: Tensor) -> Tensor:
    """Complex numbers as pairs, without a copy unless the tensor is a view that negates; whether it conjugates is for the caller to know."""
    plain = tensor.detach().resolve_neg()
    if plain.is_complex():
        return torch.view_as_real(plain.conj() if plain.is_conj() else plain)
    return plain


@functools.cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a device."""
    return PROCESSORS if device.type == "cpu" else int(torch.cuda.get_device_properties(device).multi_processor_count)


def offset_type(strides: list[int], span: int) -> Any:
    """The integers in which places are counted that are at most `span` steps or lanes apart; complex numbers are two each."""
    import triton.language as tl

    return tl.int32 if max(map(abs, strides)) * 4 * span < 1 << 31 else tl.int64


def carried(dtype: torch.dtype) -> dict[str, Any]:
    """What numbers are carried in, and how far apart two ways to one may lead, as a share of the numbers around."""
    import triton.language as tl

    if dtype in (torch.float64, torch.complex128):
        return {"CARRY": tl.float64, "ALLOWED": torch.finfo(torch.float64).eps ** 0.5}
    return {"CARRY": tl.float32, "ALLOWED": torch.finfo(torch.float32).eps ** 0.5}


def doubted(dtype: torch.dtype) -> dict[str, float]:
    """The least number of full precision, and how far off a state may be: a share of the states around, and of the largest so far."""
    if dtype == torch.float64:
        return {"TINY": 2.0**-1022, "NEAR": 2.0**-80, "FAR": 2.0**-900}
    return {"TINY": 2.0**-126, "NEAR": 2.0**-40, "FAR": 2.0**-100}


def words(dtype: torch.dtype) -> tuple[torch.dtype, dict[str, Any]]:
    """Integers as wide as what numbers are carried in, and the bits of the one value that is not a number which is published."""
    import triton.language as tl

    if dtype in (torch.float64, torch.complex128):
        return torch.int64, {"WORD": tl.int64, "NAN": 0x7FF8 << 48}
    return torch.int32, {"WORD": tl.int32, "NAN": 0x7FC0 << 16}
