"""Tensors that a field depends on without owning them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pararnn.errors import DifferentiationError
from pararnn_nanode.fields.base import Field
from pararnn_nanode.integrate.steps import Problem


def not_owned(field: Field, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Those of `tensors` and of `field.outside` that are no parameters of the field, each once."""
    owned = {id(parameter) for parameter in field.parameters()}
    return tuple({id(tensor): tensor for tensor in (*field.outside, *tensors) if id(tensor) not in owned}.values())


def outsiders(value: Tensor, known: Sequence[Tensor]) -> list[Tensor]:
    """Leaves that `value` depends on, other than through `known`."""
    stop = {id(tensor) for tensor in known}
    barrier = {(tensor.grad_fn, tensor.output_nr) for tensor in known if tensor.grad_fn is not None}
    seen = set()
    found = []
    pending = [(value.grad_fn, value.output_nr)]
    while pending:
        node, output = pending.pop()
        if node is None or (node, output) in barrier or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in stop:
            found.append(leaf)
        pending += node.next_functions
    return found


def refuse_outsiders(problem: Problem, x: Tensor, times: Sequence[float], known: Sequence[Tensor]) -> None:
    """Evaluate the field once at the start.

    Raises:
        DifferentiationError: it depends on tensors that require grad and are not `known`, whose gradient would silently be missing.
    """
    anchor = min(times[0], times[min(1, len(times) - 1)])

    def read() -> list[Tensor]:
        with torch.enable_grad():
            state = x.detach().requires_grad_()
            return outsiders(problem.slope(state, times[0], anchor), (state, *known))

    found = read()
    if found:
        # Leaves that the field makes for itself in every evaluation are nobody's to name.
        again = {id(leaf) for leaf in read()}
        found = [leaf for leaf in found if id(leaf) in again]
    if found:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in found[:4])
        raise DifferentiationError(
            f"the field reads {len(found)} tensor(s) that require grad (shapes {shapes}) and are not parameters of its module, "
            "so gradient='adjoint' would give them none; make the field a module that owns them, name them "
            "(parameters=(W,), in odeint_adjoint adjoint_params=(W,)), or use gradient='backprop'"
        )
