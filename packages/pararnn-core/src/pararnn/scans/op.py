"""The scan as a torch operator: one opaque, differentiable node for any structure and any backend.

The operator knows its structure by import path, so a structure from a plugin needs nothing here. Its backward is the operator itself, run the
other way with adjoint maps, which gives every higher derivative; its vmap rule folds the mapped dimension into the rows.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import StructureError
from pararnn.registry import Registry, installed
from pararnn.scans.fit import check_fit
from pararnn.scans.segments import Offsets, as_offsets
from pararnn.selection import Request, select
from pararnn.structures.base import Structure
from pararnn.transforms import inside_transform, refuse_nested_jvp


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


def request_for(structure: str, bias: Tensor) -> Request:
    """What a backend is asked: the operation of the structure, and where and how large the data are."""
    rows, time, state = bias.shape
    return Request.of(_op_of(structure_at(structure), installed()), device=bias.device.type, dtype=bias.dtype, rows=rows, time=time, state=state)


def constant_scan(transition: Structure, bias: Tensor, initial: Tensor | None, offsets: Offsets | None, *, backend: str) -> Tensor:
    """The states as constants: the operator without its derivatives, and outside of transforms without its overhead."""
    path = structure_path(type(transition))
    if only_numbers():
        return _run(path, transition, bias, initial, offsets, reverse=False, backend=backend)
    bounds = None if offsets is None else torch.tensor(offsets, device=bias.device)
    states: Tensor = scan_op(path, list(transition.leaves()), bias, initial, bounds, False, backend)
    return states


def _run(path: str, transition: Structure, bias: Tensor, initial: Tensor | None, offsets: Offsets | None, *, reverse: bool, backend: str) -> Tensor:
    check_fit(transition, bias)
    implementation = select(request_for(path, bias), backend=backend).implementation
    with full_precision(bias):
        states: Tensor = implementation(transition, bias, initial, offsets=offsets, reverse=reverse)
    return states


def full_precision(like: Tensor) -> contextlib.AbstractContextManager[object]:
    """Autocast switched off: it would multiply matrices in half precision, and the errors add up over time."""
    device = like.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else contextlib.nullcontext()


def only_numbers() -> bool:
    """Whether tensors stand for their numbers alone: no transform, no compiler, and no tracer (which is a dispatch mode) looks on."""
    return not inside_transform() and not torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack() == 0


@torch.library.custom_op("pararnn::scan", mutates_args=())
def scan_op(
    structure: str, leaves: Sequence[Tensor], bias: Tensor, initial: Tensor | None, offsets: Tensor | None, reverse: bool, backend: str
) -> Tensor:
    """`bias` `(rows, time, state)`, `initial` `(rows, segments, state)`, leaves `(rows, time, ...)`; returns the states."""
    segments = None if offsets is None else as_offsets(offsets, bias.shape[1])
    states = _run(structure, structure_at(structure).from_leaves(*leaves), bias, initial, segments, reverse=reverse, backend=backend)
    # An operator must not return its input, which a single step without an initial state is.
    return states.clone() if states.data_ptr() == bias.data_ptr() else states


@scan_op.register_fake
def _(structure: str, leaves: Sequence[Tensor], bias: Tensor, initial: Tensor | None, offsets: Tensor | None, reverse: bool, backend: str) -> Tensor:
    return torch.empty_like(bias, memory_format=torch.contiguous_format)


def shift(states: Tensor, initial: Tensor | None, offsets: Offsets | Tensor | None, *, reverse: bool) -> Tensor:
    """The state each step starts from: `states` `(rows, time, state)` moved by one, `initial` `(rows, segments, state)` at the edges."""
    if states.shape[1] == 0:
        return states
    first = torch.zeros_like(states[:, :1]) if initial is None else initial[:, :1]
    if offsets is None:
        return torch.cat((states[:, 1:], first) if reverse else (first, states[:, :-1]), dim=1)
    at, segments = heads(offsets, states, reverse=reverse)
    moved = states.roll(-1 if reverse else 1, dims=1)
    edge = torch.zeros_like(moved[:, at]) if initial is None else initial[:, segments]
    return moved.index_copy(1, at, edge)


def heads(offsets: Offsets | Tensor, like: Tensor, *, reverse: bool) -> tuple[Tensor, Tensor]:
    """Positions of the step that each non-empty segment starts from, and the indices of those segments."""
    bounds = offsets.to(like.device) if isinstance(offsets, Tensor) else torch.tensor(offsets, device=like.device)
    segments = (bounds[1:] > bounds[:-1]).nonzero().squeeze(-1)
    return (bounds[1:] - 1 if reverse else bounds[:-1])[segments].long(), segments


def differentiable_scan(
    transition: Structure, bias: Tensor, initial: Tensor | None, offsets: Tensor | None, *, reverse: bool, backend: str
) -> Tensor:
    """The operator with its gradients, in every mode of torch: autograd, `torch.func`, forward mode, `torch.compile`."""
    path, leaves = structure_path(type(transition)), transition.leaves()
    if not torch.is_grad_enabled() and only_numbers():
        bounds = None if offsets is None else as_offsets(offsets, bias.shape[1])
        return _run(path, transition, bias, initial, bounds, reverse=reverse, backend=backend)
    # The compiler follows the operator's own formula; torch.func transforms need an autograd.Function. Both are `_cotangents`.
    if torch.compiler.is_compiling():
        compiled: Tensor = scan_op(path, list(leaves), bias, initial, offsets, reverse, backend)
        return compiled
    states: Tensor = _Scan.apply(path, reverse, backend, offsets, bias, initial, *leaves)
    return states


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(path: str, reverse: bool, backend: str, offsets: Tensor | None, bias: Tensor, initial: Tensor | None, *leaves: Tensor) -> Tensor:
        states: Tensor = scan_op(path, list(leaves), bias, initial, offsets, reverse, backend)
        return states

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.path, ctx.reverse, ctx.backend, offsets, _, initial, *leaves = inputs
        ctx.count = len(leaves)
        ctx.save_for_backward(offsets, initial, output, *leaves)
        ctx.save_for_forward(offsets, initial, output, *leaves)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        offsets, initial, states, *leaves = ctx.saved_tensors
        transition = structure_at(ctx.path).from_leaves(*leaves)
        needs = any(ctx.needs_input_grad[6:]), initial is not None and ctx.needs_input_grad[5]
        maps, terms, start = _cotangents(transition, states, initial, offsets, grad, reverse=ctx.reverse, backend=ctx.backend, needs=needs)
        return None, None, None, None, terms, start, *maps

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        refuse_nested_jvp()
        bias_tangent, initial_tangent, *leaf_tangents = tangents[4:]
        offsets, initial, states, *leaves = ctx.saved_tensors
        transition = structure_at(ctx.path).from_leaves(*leaves)
        # dh[t] = A[t] dh[t-1] + (db[t] + dA[t] h[t-1]): the same recurrence, driven by the tangents.
        term = torch.zeros_like(states) if bias_tangent is None else bias_tangent
        if any(tangent is not None for tangent in leaf_tangents):
            moved = [torch.zeros_like(leaf) if tangent is None else tangent for leaf, tangent in zip(leaves, leaf_tangents, strict=True)]
            with full_precision(term):
                term = term + type(transition).from_leaves(*moved).apply(shift(states, initial, offsets, reverse=ctx.reverse))
        return differentiable_scan(transition, term, initial_tangent, offsets, reverse=ctx.reverse, backend=ctx.backend)

    @staticmethod
    def vmap(info: Any, in_dims: Any, path: str, reverse: bool, backend: str, offsets: Tensor | None, *tensors: Any) -> tuple[Tensor, int]:
        bias, initial, *leaves = (
            None if tensor is None else fold(tensor, dim, info.batch_size) for tensor, dim in zip(tensors, in_dims[4:], strict=True)
        )
        return unfold(_Scan.apply(path, reverse, backend, offsets, bias, initial, *leaves), info.batch_size), 0


def _cotangents(
    transition: Structure,
    states: Tensor,
    initial: Tensor | None,
    offsets: Tensor | None,
    grad: Tensor,
    *,
    reverse: bool,
    backend: str,
    needs: tuple[bool, bool],
) -> tuple[list[Tensor | None], Tensor, Tensor | None]:
    """Gradients of leaves, terms and initial state from the gradients of the states; the first and last only where needed."""
    costate = reverse_scan(transition, grad, offsets, reverse=reverse, backend=backend)
    maps: list[Tensor | None] = [None] * len(transition.leaves())
    start = None
    with full_precision(grad):
        if needs[0]:
            maps = list(transition.leaf_cotangents(shift(states, initial, offsets, reverse=reverse), costate))
        if needs[1] and initial is not None:
            start = initial_cotangent(transition, costate, initial, offsets, reverse=reverse)
    return maps, costate, start


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.path, leaves, _, initial, offsets, ctx.reverse, ctx.backend = inputs
    ctx.count = len(leaves)
    ctx.save_for_backward(offsets, initial, output, *leaves)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    offsets, initial, states, *leaves = ctx.saved_tensors
    transition = structure_at(ctx.path).from_leaves(*leaves)
    needs = any(ctx.needs_input_grad[1]), initial is not None and ctx.needs_input_grad[3]
    maps, terms, start = _cotangents(transition, states, initial, offsets, grad, reverse=ctx.reverse, backend=ctx.backend, needs=needs)
    return None, maps, terms, start, None, None, None


def reverse_scan(transition: Structure, grad: Tensor, offsets: Tensor | None, *, reverse: bool, backend: str) -> Tensor:
    """`lam[t] = g[t] + A[t+1]^H lam[t+1]`: the gradient of each term, from the gradients `grad` of the states."""
    # Each segment's last costate has no successor; without an initial state the operator never reads the map rolled in there.
    following = transition.adjoint().map(lambda leaf: leaf.roll(1 if reverse else -1, dims=1))
    return differentiable_scan(following, grad, None, offsets, reverse=not reverse, backend=backend)


def initial_cotangent(transition: Structure, costate: Tensor, initial: Tensor, offsets: Tensor | None, *, reverse: bool) -> Tensor:
    """The gradient `(rows, segments, state)` of the initial states."""
    if costate.shape[1] == 0:
        return torch.zeros_like(initial)
    if offsets is None:
        at = slice(-1, None) if reverse else slice(0, 1)
        return transition.map(lambda leaf: leaf[:, at]).adjoint().apply(costate[:, at])
    positions, segments = heads(offsets, costate, reverse=reverse)
    pulled = transition.map(lambda leaf: leaf[:, positions]).adjoint().apply(costate[:, positions])
    return torch.zeros_like(initial).index_copy(1, segments, pulled)


scan_op.register_autograd(_backward, setup_context=_setup_context)


def fold(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """Merge a mapped dimension (made by repetition where `dim` is None) with the rows, which come first."""
    moved = tensor.unsqueeze(0).expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return moved.flatten(0, 1)


def unfold(tensor: Tensor, size: int) -> Tensor:
    """Undo `fold`: `(size * rows, ...)` to `(size, rows, ...)`."""
    # Without a member the rows cannot be told; whatever they are said to be, there are no numbers in them.
    rows = tensor.shape[0] // max(size, 1)
    unfolded: Tensor = tensor.unflatten(0, (size, rows))
    return unfolded


@scan_op.register_vmap
def _vmap(
    info: Any, in_dims: Any, structure: str, leaves: Any, bias: Tensor, initial: Any, offsets: Any, reverse: bool, backend: str
) -> tuple[Tensor, int]:
    size = info.batch_size
    folded = [fold(leaf, dim, size) for leaf, dim in zip(leaves, in_dims[1], strict=True)]
    start = None if initial is None else fold(initial, in_dims[3], size)
    states: Tensor = scan_op(structure, folded, fold(bias, in_dims[2], size), start, offsets, reverse, backend)
    return unfold(states, size), 0
