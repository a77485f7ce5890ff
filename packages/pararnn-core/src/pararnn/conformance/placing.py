"""Where a backend works on this machine: the first device and dtype for which it names no obstacle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from pararnn.errors import ConformanceError, sentence
from pararnn.provenance import Entry
from pararnn.selection import Request
from pararnn.specs import BackendSpec

ROWS, TIME, STATE = 3, 65, 12


@dataclass(frozen=True, kw_only=True)
class Place:
    """A device and a dtype."""

    device: str
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.dtype} on {self.device}"


def requests(op: str) -> tuple[Request, ...]:
    """Requests of every kind: devices, dtypes, with and without gradient, one step and many."""
    return tuple(
        Request.of(op, device=device, dtype=dtype, needs_grad=needs_grad, rows=ROWS, time=time, state=STATE)
        for device in ("cpu", "cuda", "mps")
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.complex64)
        for needs_grad in (False, True)
        for time in (1, TIME)
    )


def reasons_of(backend: Entry[BackendSpec], request: Request) -> Any:
    """What `reasons` gives for `request`.

    Raises:
        ConformanceError: it raises.
    """
    try:
        return backend.resolve(backend.spec.reasons)(request)
    except Exception as error:
        raise ConformanceError(f"reasons({request}) raises ({sentence(error)}); it must return obstacles, not raise them") from error


def place_of(backend: Entry[BackendSpec]) -> Place | str:
    """Where the backend works, in float64 if it can; or, where it works nowhere here, why."""
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    obstacles: list[str] = []
    for dtype in (torch.float64, torch.float32):
        for device in devices:
            found = reasons_of(backend, Request.of(backend.spec.op, device=device, dtype=dtype, needs_grad=True, rows=ROWS, time=TIME, state=STATE))
            if not found:
                return Place(device=device, dtype=dtype)
            obstacles += [reason for reason in found if reason not in obstacles]
    return f"backend {backend.name!r} cannot serve here: {'; '.join(obstacles)}"
