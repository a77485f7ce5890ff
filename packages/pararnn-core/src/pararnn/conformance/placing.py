"""Where a backend works on this machine: the devices and dtypes for which it names no obstacle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from pararnn.conformance.op_examples import COMPLEX, Call, calls, offers, precisions, with_examples
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
    """Requests of every kind: devices, dtypes, with and without gradient, one step and many, and those of the operation's examples."""
    of_calls = (call.request for entry in with_examples(op) for dtype in precisions(entry) for call in calls(entry, dtype))
    examples = [replace(request, device=device) for request in of_calls for device in ("cpu", "cuda")]
    sequences = [
        Request.of(op, device=device, dtype=dtype, needs_grad=needs_grad, rows=ROWS, time=time, state=STATE)
        for device in ("cpu", "cuda", "mps")
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.complex64)
        for needs_grad in (False, True)
        for time in (1, TIME)
    ]
    return (*sequences, *(replace(request, needs_grad=needs_grad) for request in examples for needs_grad in (False, True)))


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
    """Where the backend works first, in float64 or complex128 if it can; or, where it works nowhere here, why."""
    op = backend.spec.op
    if with_examples(op):
        found = served(backend, needs_grad=False)
        return found if isinstance(found, str) else Place(device=found[0].request.device, dtype=getattr(torch, found[0].request.dtype))
    obstacles: list[str] = []
    works_in_complex = any(entry.spec.dtype in COMPLEX for entry in offers(op))
    for dtype in (torch.complex128, torch.complex64) if works_in_complex else (torch.float64, torch.float32):
        for device in _devices():
            reasons = reasons_of(backend, Request.of(op, device=device, dtype=dtype, needs_grad=True, rows=ROWS, time=TIME, state=STATE))
            if not reasons:
                return Place(device=device, dtype=dtype)
            obstacles += [reason for reason in reasons if reason not in obstacles]
    return _nowhere(backend, obstacles)


def served(backend: Entry[BackendSpec], *, needs_grad: bool, seed: int = 0) -> tuple[Call, ...] | str:
    """The calls of its operation's examples that the backend serves when it is named, on every device here, in every precision; or why none."""
    found: list[Call] = []
    obstacles: list[str] = []
    for entry in with_examples(backend.spec.op):
        for dtype in precisions(entry):
            for device in _devices():
                for call in calls(entry, dtype, device=device, seed=seed):
                    options = tuple(sorted((dict(call.request.options) | {"named": True}).items()))
                    request = replace(call.request, needs_grad=needs_grad, options=options)
                    reasons = reasons_of(backend, request)
                    if not reasons:
                        found.append(replace(call, request=request))
                    obstacles += [reason for reason in reasons if reason not in obstacles]
    return tuple(found) or _nowhere(backend, obstacles or ["the examples of its operation are empty lists"])


def _devices() -> tuple[str, ...]:
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def _nowhere(backend: Entry[BackendSpec], obstacles: list[str]) -> str:
    return f"backend {backend.name!r} cannot serve here: {'; '.join(obstacles)}"
