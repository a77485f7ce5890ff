"""Shares of a call on several threads. A call of a library by ctypes lets go of Python's lock, so Python's threads are enough."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

# Below so many numbers one thread is done before another has begun.
WORTH_THREADS = 1 << 16


def in_shares(call: Callable[[int, int], int], *, tasks: int, numbers: int) -> bool:
    """Call `call(share, shares)` for all shares of the work, at once where that is worth it; whether all of them returned true."""
    shares = min(torch.get_num_threads(), tasks) if numbers >= WORTH_THREADS else 1
    if shares <= 1:
        return bool(call(0, 1))
    waiting = [_pool(shares).submit(call, share, shares) for share in range(1, shares)]
    results = [call(0, shares)]
    # Every share is waited for: the tensors have to live until the last is done.
    results += [share.result() for share in waiting]
    return all(results)


@functools.cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="pararnn-native")


if hasattr(os, "register_at_fork"):
    # A forked process inherits pools without their threads, which would wait for ever.
    os.register_at_fork(after_in_child=_pool.cache_clear)
