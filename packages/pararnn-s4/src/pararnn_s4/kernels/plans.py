"""What calls of one form have in common: checked shapes, their arrangement, and the backend that serves; remembered from one call to the next.

On a GPU a small product takes ten microseconds, and asking anew whether the shapes fit and who serves would take ten times as many.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import ShapeError
from pararnn.registry import installed
from pararnn.scans.dispatch import only_numbers
from pararnn.selection import REMEMBERED, Request, select
from pararnn_s4.kernels import blocked, naive
from pararnn_s4.kernels.arrange import Leading, check_axes, common_dtype

TRACEABLE: dict[str, Any] = {"auto": blocked, "blocked": blocked, "naive": naive}


@dataclass(frozen=True)
class Plan:
    """How a call is answered: the dtype it is computed in, how leading dimensions are arranged, and the function of the backend."""

    dtype: torch.dtype
    leading: Leading
    implementation: Callable[..., Tensor]


def plan_for(op: str, numerators: Tensor, poles: Tensor, *others: Tensor, length: int, conj: bool, backend: str) -> Plan:
    """The plan of a product of `numerators` `(..., state or length)` with `poles` `(..., state)`; `others` are checked with them.

    Raises:
        ShapeError, DTypeError: tensors that do not fit.
        BackendError: `backend` cannot serve, with the reasons.
    """
    tensors = (numerators, poles, *others)
    if torch.compiler.is_compiling():
        return _made(op, tensors, length, conj, backend, needs_grad=False, transformed=False)
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors if isinstance(tensor, Tensor))
    # A tracer looks on as a transform does: tensors may have no numbers in memory.
    transformed = not only_numbers()
    forms = tuple((tensor.shape, tensor.dtype, tensor.device) if isinstance(tensor, Tensor) else type(tensor) for tensor in tensors)
    # The memory of the registry is emptied by `pararnn.selection.clear_cache`, and goes when plugins are discovered anew.
    memory = installed().memo
    question = (op, forms, length, conj, backend, needs_grad, transformed)
    plan: Plan | None = memory.get(question)
    if plan is None:
        plan = _made(op, tensors, length, conj, backend, needs_grad=needs_grad, transformed=transformed)
        if len(memory) >= REMEMBERED:
            memory.clear()
        memory[question] = plan
    return plan


def _made(op: str, tensors: tuple[Tensor, ...], length: int, conj: bool, backend: str, *, needs_grad: bool, transformed: bool) -> Plan:
    names = {"cauchy": ("v", "w", "z"), "vandermonde": ("v", "x"), "vandermonde_transpose": ("u", "x", "v")}[op]
    named = dict(zip(names, tensors, strict=True))
    dtype = common_dtype(**named)
    check_axes(**named)
    poles = "w" if op == "cauchy" else "x"
    if named["v"].shape[-1] != named[poles].shape[-1]:
        raise ShapeError(
            f"v ends in {named['v'].shape[-1]} and {poles} in {named[poles].shape[-1]}; both need the same number of entries, "
            "one of each conjugate pair"
        )
    if length < 1 and op != "cauchy":
        raise ShapeError(f"the length is {length}; it must be at least 1")
    nodes = [named["z"].shape[:-1]] if op == "cauchy" else []
    leading = Leading.of(tensors[0].shape[:-1], *nodes, named[poles].shape[:-1])
    sizes = {"groups": math.prod(leading.groups), "copies": math.prod(leading.copies), "state": named[poles].shape[-1], "length": length}
    implementation = implementation_for(op, sizes, named[poles].device.type, dtype, conj, backend, needs_grad, transformed)
    # A backend whose function says so takes numerators without groups: every view that is not made is one that autograd need not undo.
    flat = not leading.groups and getattr(implementation, "takes_rows", False)
    return Plan(dtype, Leading(leading.groups, leading.copies, flat=True) if flat else leading, implementation)


def implementation_for(
    op: str, sizes: dict[str, int], device: str, dtype: torch.dtype, conj: bool, backend: str, needs_grad: bool, transformed: bool
) -> Callable[..., Tensor]:
    """The function of the backend that serves; the definition itself where there is nothing to compute."""
    found: Callable[..., Tensor]
    if torch.compiler.is_compiling():
        if backend in TRACEABLE:
            found = getattr(TRACEABLE[backend], op)
        else:
            # Imported here, because it loads the compiler.
            from pararnn_s4.kernels.untraced import outside_the_graph

            found = functools.partial(outside_the_graph, (op, tuple(sizes.items()), device, dtype, conj, backend))
    elif 0 in sizes.values():
        found = getattr(naive, op)
    else:
        options = {"conj": conj, "transformed": transformed, "named": backend != "auto"}
        request = Request.of(f"s4/{op}", device=device, dtype=dtype, needs_grad=needs_grad, options=options, **sizes)
        found = select(request, backend).implementation
    return found
