"""A fingerprint of numbers, texts and tensors, by which damage and other data are noticed."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from typing import Any

from torch import Tensor


def digest_of(value: Any) -> str:
    """Hexadecimal digits that are the same for equal nested lists and dicts, in equal order, of equal bytes."""
    found = hashlib.blake2b(digest_size=16)
    _add(value, found.update)
    return found.hexdigest()


def _add(value: Any, update: Callable[[Any], None]) -> None:
    if isinstance(value, Tensor):
        held = value.detach().cpu().contiguous()
        update(f"tensor {held.dtype} {tuple(held.shape)};".encode())
        # The bytes where they lie: numpy, which would give them too, may be missing.
        if held.numel():
            update((ctypes.c_ubyte * (held.numel() * held.element_size())).from_address(held.data_ptr()))
    elif isinstance(value, dict):
        update(f"dict {len(value)};".encode())
        for key, part in value.items():
            _add(key, update)
            _add(part, update)
    elif isinstance(value, list | tuple):
        update(f"{type(value).__name__} {len(value)};".encode())
        for part in value:
            _add(part, update)
    else:
        text = repr(value)
        update(f"{type(value).__name__} {len(text)} {text};".encode())
