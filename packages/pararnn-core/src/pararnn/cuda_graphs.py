"""What the recording of a CUDA graph needs around it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def end_recordings(device: torch.device) -> None:
    """A recording that fails leaves torch (seen in 2.11) with a random generator that waits for its end; one that succeeds ends it."""
    # Decoding goes on without random numbers, should it not.
    with contextlib.suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
        torch.zeros(1, device=device)


@contextlib.contextmanager
def without_cached_casts() -> Iterator[None]:
    """Weights are cast inside the recording, so that a replay sees their values of that moment."""
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(cached)
