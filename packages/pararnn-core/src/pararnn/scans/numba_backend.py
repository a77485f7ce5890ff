"""The diagonal scan in one pass over memory, compiled by numba for the CPU.

Layout: maps and terms are `(rows, time, state)`, state contiguous. A task owns a block of channels of one sequence and walks its time with the
carry in registers and cache; tasks run on a thread pool, because numba's own threads may not be entered from two Python threads at once.
Oracle: `pararnn.scans.reference`.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from pararnn.scans.segments import Offsets
from pararnn.selection import Request
from pararnn.structures.base import Structure

DTYPES = ("float32", "float64", "complex64", "complex128")
BLOCK = 256
# Below this many elements one thread is faster than handing tasks to several.
WORTH_THREADS = 1 << 16


def reasons(request: Request) -> tuple[str, ...]:
    """Obstacles: another device or dtype, or numba is not installed."""
    found = []
    if request.device != "cpu":
        found.append(f"it runs on the CPU, the tensors are on {request.device}")
    if request.dtype not in DTYPES:
        found.append(f"it works in {', '.join(DTYPES)}, the tensors are {request.dtype}")
    if importlib.util.find_spec("numba") is None:
        found.append("numba is not installed; pip install 'pararnn-core[cpu]'")
    return tuple(found)


def probe() -> tuple[str, ...] | None:
    """Compile the kernel and scan a small sequence."""
    from pararnn.structures.diagonal import Diagonal

    obstacles = reasons(Request.of("scan/diagonal"))
    if obstacles:
        return obstacles
    scan(Diagonal(torch.ones(1, 8, 2)), torch.ones(1, 8, 2), None)
    return None


def scan(transition: Structure, bias: Tensor, initial: Tensor | None, *, offsets: Offsets | None = None, reverse: bool = False) -> Tensor:
    """`h[t] = a[t] h[t-1] + b[t]` for `bias` `(rows, time, state)`; see `pararnn.scans.chunked.scan`."""
    (diagonal,) = transition.leaves()
    rows, length, size = bias.shape
    states = torch.empty_like(bias, memory_format=torch.contiguous_format)
    if states.numel() == 0:
        return states
    bounds = (0, length) if offsets is None else offsets
    start = bias.new_zeros(rows, len(bounds) - 1, size) if initial is None else initial
    arrays = [_array(tensor) for tensor in (diagonal, bias, start, states)]
    block = size if size <= BLOCK else BLOCK
    tasks = [
        (row, segment, first, min(first + block, size), low, high)
        for row in range(rows)
        for segment, (low, high) in enumerate(itertools.pairwise(bounds))
        for first in range(0, size, block)
        if high > low
    ]
    workers = torch.get_num_threads() if states.numel() >= WORTH_THREADS else 1
    if workers == 1 or len(tasks) == 1:
        _run(tasks, arrays, initial is not None, reverse)
    else:
        mine, *others = (tasks[index::workers] for index in range(min(workers, len(tasks))))
        waiting = [_pool(workers).submit(_run, share, arrays, initial is not None, reverse) for share in others]
        _run(mine, arrays, initial is not None, reverse)
        for share in waiting:
            share.result()
    return states


def _array(tensor: Tensor) -> Any:
    """The tensor as a numpy array over the same memory."""
    return tensor.detach().resolve_conj().resolve_neg().numpy()


def _run(tasks: Sequence[tuple[int, int, int, int, int, int]], arrays: list[Any], has_initial: bool, reverse: bool) -> None:
    diagonal, bias, start, states = arrays
    kernel = _kernel()
    for row, segment, first, last, low, high in tasks:
        window = slice(low, high), slice(first, last)
        kernel(diagonal[row][window], bias[row][window], start[row, segment, first:last], has_initial, reverse, states[row][window])


@functools.cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="pararnn-scan")


if hasattr(os, "register_at_fork"):
    # A forked process inherits pools without their threads, which would wait for ever.
    os.register_at_fork(after_in_child=_pool.cache_clear)


@functools.cache
def _kernel() -> Callable[..., None]:
    """The compiled loop; numba keeps it on disk for the next process."""
    import numba
    import numpy

    @numba.njit(nogil=True, cache=True)
    def walk(a: Any, b: Any, initial: Any, has_initial: bool, reverse: bool, h: Any) -> None:
        length, size = b.shape
        # The carry lives in a small array of its own: reading the row before from the result keeps the compiler from vectorising freely.
        carry = numpy.zeros(size, b.dtype)
        first = length - 1 if reverse else 0
        # Without an initial state the first map is not read: zero times infinity would be NaN.
        for channel in range(size):
            carry[channel] = a[first, channel] * initial[channel] + b[first, channel] if has_initial else b[first, channel]
            h[first, channel] = carry[channel]
        for step in range(1, length):
            time = length - 1 - step if reverse else step
            maps, terms, states = a[time], b[time], h[time]
            for channel in range(size):
                carry[channel] = maps[channel] * carry[channel] + terms[channel]
                states[channel] = carry[channel]

    kernel: Callable[..., None] = walk
    return kernel
