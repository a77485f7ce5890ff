"""Large results in huge pages where the system has them: the faults of small pages would cost as much as computing what is written there."""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# From so many bytes on the request is worth its microseconds.
LARGE = 1 << 22


def room(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An empty tensor on the CPU."""
    tensor = torch.empty(shape, dtype=dtype, device="cpu")
    if tensor.nbytes >= LARGE and (advise := _advise()) is not None:
        first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        pages = (tensor.data_ptr() + tensor.nbytes - first) // mmap.PAGESIZE
        # A system without huge pages refuses, and nothing is lost.
        advise(first, pages * mmap.PAGESIZE, mmap.MADV_HUGEPAGE)
    return tensor


@functools.cache
def _advise() -> Callable[[int, int, int], int] | None:
    if not sys.platform.startswith("linux") or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        function = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    function.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    function.restype = ctypes.c_int
    found: Callable[[int, int, int], int] = function
    return found
