"""From maps and terms to the backend that scans them: the operation of a structure, the request, the call."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import BackendError, StructureError
from pararnn.registry import Registry, installed
from pararnn.scans.fit import check_fit
from pararnn.scans.segments import Offsets, as_offsets
from pararnn.selection import Request, select
from pararnn.structures.base import Structure
from pararnn.transforms import inside_transform


def structure_path(structure: type[Structure]) -> str:
    """The import path by which the operator finds `structure` again.

    Raises:
        StructureError: the class is defined inside a function, where nothing can import it.
    """
    if "<locals>" in structure.__qualname__:
        raise StructureError(
            f"the structure {structure.__qualname__} of {structure.__module__} is defined inside a function, but the operator finds "
            "structures by import path; define the class at the top level of its module"
        )
    return f"{structure.__module__}:{structure.__qualname__}"


def structure_at(path: str) -> type[Structure]:
    """The structure class behind an import path; looked up each time, because a notebook may define it anew under the same path."""
    module, _, name = path.partition(":")
    found: Any = sys.modules.get(module) or importlib.import_module(module)
    structure: type[Structure] = functools.reduce(getattr, name.split("."), found)
    return structure


@functools.cache
def _op_of(structure: type[Structure], registry: Registry) -> str:
    """The operation that scans this structure, or a base of it; `scan/generic` where none has one of its own."""
    targets = {entry.spec.target: name for name, entry in registry.structures.items()}
    known = (targets.get(f"{base.__module__}:{base.__qualname__}") for base in structure.__mro__)
    name = next((name for name in known if name is not None), "generic")
    return f"scan/{name}" if f"scan/{name}" in registry.ops else "scan/generic"


def request_for(structure: str, bias: Tensor, dtype: torch.dtype | None = None) -> Request:
    """What a backend is asked: the operation of the structure, and where and how large the data are; `dtype` is that of `bias` if left out."""
    rows, time, state = bias.shape
    kind = structure_at(structure)
    slots = getattr(kind, "slots", None)
    options = None if slots is None else {"slots": slots}
    op = _op_of(kind, installed())
    return Request.of(op, device=bias.device.type, dtype=dtype or bias.dtype, options=options, rows=rows, time=time, state=state)


def run_backend(
    path: str, transition: Structure, bias: Tensor, initial: Tensor | None, offsets: Offsets | None, *, reverse: bool, backend: str
) -> Tensor:
    """The states by the backend that serves the request; `bias` `(rows, time, state)`, in full precision also under autocast."""
    check_fit(transition, bias)
    implementation = select(request_for(path, bias), backend=backend).implementation
    with full_precision(bias):
        states: Tensor = implementation(transition, bias, initial, offsets=offsets, reverse=reverse)
    return states


def reads_half(structure: type[Structure], bias: Tensor, dtype: torch.dtype, *, backend: str) -> bool:
    """Whether the backend that serves a scan in half precision `dtype` carries it in single precision itself, so that nothing has to be converted."""
    # A transform or a compiler cannot look at which backend that is.
    if not only_numbers():
        return False
    try:
        selection = select(request_for(structure_path(structure), bias, dtype), backend=backend)
    except BackendError:
        return False
    return bool(getattr(selection.implementation, "reads_half", False))


def run_costates(
    path: str,
    transition: Structure,
    grad: Tensor,
    offsets: Tensor | None,
    *,
    states: Tensor | None = None,
    initial: Tensor | None = None,
    reverse: bool,
    backend: str,
) -> tuple[Tensor, tuple[Tensor, ...] | None] | None:
    """Gradients of the terms, and with `states` of the leaves, where the backend has `costates` and no derivative of them is asked for; else None."""
    if torch.is_grad_enabled() or not only_numbers():
        return None
    costates = getattr(select(request_for(path, grad), backend=backend).implementation, "costates", None)
    if costates is None:
        return None
    bounds = None if offsets is None else as_offsets(offsets, grad.shape[1])
    with full_precision(grad):
        found: tuple[Tensor, tuple[Tensor, ...] | None] = costates(transition, grad, states=states, initial=initial, offsets=bounds, reverse=reverse)
    return found


def full_precision(like: Tensor) -> contextlib.AbstractContextManager[object]:
    """Autocast switched off: it would multiply matrices in half precision, and the errors add up over time."""
    device = like.device.type
    # Asked of a device without autocast, such as meta, torch raises; the first question cannot be traced by torch 2.11, where none such arises.
    active = (torch.compiler.is_compiling() or torch.amp.is_autocast_available(device)) and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if active else contextlib.nullcontext()


def only_numbers() -> bool:
    """Whether tensors stand for their numbers alone: no transform, no compiler, and no tracer (which is a dispatch mode) looks on."""
    return not inside_transform() and not torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack() == 0
