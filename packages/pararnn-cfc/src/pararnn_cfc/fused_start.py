"""Where sequences start that were given no state: at zeros, which lie in memory once and are read by every row of every solve."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

Key: TypeAlias = tuple[int, int, torch.dtype, torch.device]

# They are never freed, because streams that nobody knows of may be reading them, so there must not be many.
REMEMBERED = 256
_ready: dict[Key, Tensor] = {}
# Those that may still have to be written, with the event that tells.
_awaited: dict[Key, tuple[Tensor, Any]] = {}


def zeros(sequences: int, state: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros `(sequences, state)` to be read; on a GPU all rows are the same memory."""
    key = sequences, state, dtype, device
    found = _ready.get(key)
    return _zeros(key) if found is None else found


def _zeros(key: Key) -> Tensor:
    sequences, state, dtype, device = key
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing() or len(_ready) + len(_awaited) >= REMEMBERED:
        # What is made while a graph is recorded belongs to that graph.
        return torch.zeros(sequences, state, dtype=dtype, device=device)
    with torch.cuda.device(device):
        if key in _awaited:
            found, written = _awaited[key]
            if written.query():
                _ready[key] = found
                _awaited.pop(key, None)
            else:
                torch.cuda.current_stream().wait_event(written)
            return found
        # Tensors of inference mode could not be saved for a backward pass.
        with torch.inference_mode(False):
            found = torch.zeros(1, state, dtype=dtype, device=device).expand(sequences, state)
        written = torch.cuda.Event()
        written.record()
        _awaited[key] = found, written
    return found
