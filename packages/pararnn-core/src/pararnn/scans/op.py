"""The scan as a torch operator: one opaque, differentiable node for any structure and any backend.

The operator knows its structure by import path, so a structure from a plugin needs nothing here. Its backward is the operator itself, run the
other way with adjoint maps, which gives every higher derivative; its vmap rule folds the mapped dimension into the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pararnn.scans.dispatch import full_precision, only_numbers, run_backend, run_costates, structure_at, structure_path
from pararnn.scans.edges import fold, heads, shift, unfold
from pararnn.scans.layout import empty_along, keeps_along
from pararnn.scans.segments import Offsets, as_offsets
from pararnn.structures.base import Structure
from pararnn.transforms import refuse_nested_jvp


def constant_scan(transition: Structure, bias: Tensor, initial: Tensor | None, offsets: Offsets | None, *, backend: str) -> Tensor:
    """The states as constants: the operator without its derivatives, and outside of transforms without its overhead."""
    path = structure_path(type(transition))
    if only_numbers():
        return run_backend(path, transition, bias, initial, offsets, reverse=False, backend=backend)
    bounds = None if offsets is None else torch.tensor(offsets, device=bias.device)
    states: Tensor = scan_op(path, list(transition.leaves()), bias, initial, bounds, False, backend)
    return states


@torch.library.custom_op("pararnn::scan", mutates_args=())
def scan_op(
    structure: str, leaves: Sequence[Tensor], bias: Tensor, initial: Tensor | None, offsets: Tensor | None, reverse: bool, backend: str
) -> Tensor:
    """`bias` `(rows, time, state)`, `initial` `(rows, segments, state)`, leaves `(rows, time, ...)`; returns the states."""
    segments = None if offsets is None else as_offsets(offsets, bias.shape[1])
    kind = structure_at(structure)
    states = run_backend(structure, kind.from_leaves(*leaves), bias, initial, segments, reverse=reverse, backend=backend)
    # A compiler has been told how they lie, whatever the backend.
    if keeps_along(list(leaves), bias, offsets):
        return states if states.stride(1) == 1 else empty_along(states).copy_(states)
    states = states.contiguous()
    # An operator must not return its input, which a single step without an initial state is.
    return states.clone() if states.data_ptr() == bias.data_ptr() else states


@scan_op.register_fake
def _(structure: str, leaves: Sequence[Tensor], bias: Tensor, initial: Tensor | None, offsets: Tensor | None, reverse: bool, backend: str) -> Tensor:
    if keeps_along(list(leaves), bias, offsets):
        return empty_along(bias)
    return torch.empty_like(bias, memory_format=torch.contiguous_format)


def differentiable_scan(
    transition: Structure, bias: Tensor, initial: Tensor | None, offsets: Tensor | None, *, reverse: bool, backend: str
) -> Tensor:
    """The operator with its gradients, in every mode of torch: autograd, `torch.func`, forward mode, `torch.compile`."""
    path, leaves = structure_path(type(transition)), transition.leaves()
    if not torch.is_grad_enabled() and only_numbers():
        bounds = None if offsets is None else as_offsets(offsets, bias.shape[1])
        return run_backend(path, transition, bias, initial, bounds, reverse=reverse, backend=backend)
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
    path = structure_path(type(transition))
    given = run_costates(path, transition, grad, offsets, states=states, initial=initial, reverse=reverse, backend=backend) if needs[0] else None
    costate, leaves = (reverse_scan(transition, grad, offsets, reverse=reverse, backend=backend), None) if given is None else given
    maps: list[Tensor | None] = [None] * len(transition.leaves())
    start = None
    with full_precision(grad):
        if leaves is not None:
            maps = list(leaves)
        elif needs[0]:
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
    given = run_costates(structure_path(type(transition)), transition, grad, offsets, reverse=reverse, backend=backend)
    if given is not None:
        return given[0]
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


@scan_op.register_vmap
def _vmap(
    info: Any, in_dims: Any, structure: str, leaves: Any, bias: Tensor, initial: Any, offsets: Any, reverse: bool, backend: str
) -> tuple[Tensor, int]:
    size = info.batch_size
    folded = [fold(leaf, dim, size) for leaf, dim in zip(leaves, in_dims[1], strict=True)]
    start = None if initial is None else fold(initial, in_dims[3], size)
    states: Tensor = scan_op(structure, folded, fold(bias, in_dims[2], size), start, offsets, reverse, backend)
    return unfold(states, size), 0
