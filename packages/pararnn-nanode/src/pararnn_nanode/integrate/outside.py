"""Tensors that a field depends on without owning them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import DifferentiationError
from pararnn_nanode.fields.base import Field, Weights


def not_owned(field: Field, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Those of `tensors` and of `field.outside` that are no parameters of the field, each once."""
    owned = {id(parameter) for parameter in field.parameters()}
    return tuple({id(tensor): tensor for tensor in (*field.outside, *tensors) if id(tensor) not in owned}.values())


def outsiders(value: Tensor, known: Sequence[Tensor]) -> list[Tensor]:
    """Leaves that `value` depends on, other than through `known`."""
    stop = {id(tensor) for tensor in known}
    if value.grad_fn is None:
        return [value] if value.requires_grad and id(value) not in stop else []
    barrier = {(tensor.grad_fn, tensor.output_nr) for tensor in known if tensor.grad_fn is not None}
    seen: set[Any] = set()
    found = []
    pending: list[tuple[Any, int]] = [(value.grad_fn, value.output_nr)]
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


class Guarded(Field):
    """Values of `field` without a graph, on the watch in every evaluation for tensors that would be lost to the gradient.

    As in `Alone`, fields that call `torch.autograd.grad` on their state find one that requires grad.

    Args:
        known: tensors with gradients that the field may depend on.
    """

    def __init__(self, field: Field, known: Sequence[Tensor]) -> None:
        super().__init__()
        self.field = field
        self.known = tuple(known)

    def weights(self, times: Tensor, anchors: Tensor | None = None, u: Tensor | None = None) -> Weights:
        def read() -> Weights:
            return self.field.weights(times, anchors, u)

        with torch.enable_grad():
            leaves = read()
            self._judge(leaves, read, self.known)
        return tuple(leaf.detach() for leaf in leaves)

    def evaluate(self, x: Tensor, weights: Weights) -> Tensor:
        state = x.detach().requires_grad_()

        def read() -> Weights:
            return (self.field.evaluate(state, weights),)

        with torch.enable_grad():
            (slope,) = read()
            self._judge((slope,), read, (state, *self.known))
        return slope.detach()

    def edges(self) -> tuple[float, ...]:
        return self.field.edges()

    def _judge(self, values: Weights, again: Callable[[], Weights], known: Sequence[Tensor]) -> None:
        """Raise where `values` depend on others than `known`.

        Raises:
            DifferentiationError: the gradient of some tensor would silently be missing.
        """
        found = [leaf for value in values if value.requires_grad for leaf in outsiders(value, known)]
        if not found:
            return
        # Leaves that the field makes for itself in every evaluation are nobody's to name.
        same = {id(leaf) for value in again() if value.requires_grad for leaf in outsiders(value, known)}
        found = list({id(leaf): leaf for leaf in found if id(leaf) in same}.values())
        if found:
            shapes = ", ".join(str(tuple(leaf.shape)) for leaf in found[:4])
            raise DifferentiationError(
                f"the field reads {len(found)} tensor(s) that require grad (shapes {shapes}) and are not parameters of its module, "
                "so gradient='adjoint' would give them none; make the field a module that owns them, name them "
                "(parameters=(W,), in odeint_adjoint adjoint_params=(W,)), or use gradient='backprop'"
            )
