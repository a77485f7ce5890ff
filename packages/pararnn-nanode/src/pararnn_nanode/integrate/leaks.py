"""Tensors with gradients that a field uses although nobody named them: methods that evaluate it again later would lose their gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from pararnn.errors import DifferentiationError
from pararnn_nanode.fields.base import Formula, Weights
from pararnn_nanode.integrate.methods import Equation


class Watched:
    """An equation whose known tensors are all cut from the graph, so that a result with a gradient betrays an unknown one.

    Args:
        declared: tensors outside the module that the caller named.
        gradient: what the gradient is had by, for messages.
    """

    def __init__(self, equation: Equation, declared: Iterable[Tensor], gradient: str) -> None:
        self._equation = equation
        self._declared = tuple(declared)
        self._gradient = gradient
        self._judged = False

    def weights(self, times: Tensor, anchors: Tensor | None = None, u: Tensor | None = None) -> Weights:
        leaves = self._equation.weights(times, anchors, u)
        if any(leaf.requires_grad for leaf in leaves):
            self._judge(leaves, lambda: self._equation.weights(times, anchors, u))
            leaves = tuple(leaf.detach() for leaf in leaves)
        return leaves

    def evaluate(self, x: Tensor, weights: Weights) -> Tensor:
        # A field that takes a derivative itself may call requires_grad_ on its argument; the state must not see that.
        slope = self._equation.evaluate(x.detach(), weights)
        if slope.requires_grad:
            self._judge((slope,), lambda: (self._equation.evaluate(x.detach(), weights),))
            slope = slope.detach()
        return slope

    def differentiate(self, x: Tensor, weights: Weights) -> Formula | None:
        return None

    def _judge(self, results: Iterable[Tensor], again: Callable[[], Iterable[Tensor]]) -> None:
        """Raise where the same tensor with a gradient is met in two evaluations.

        A field that takes a derivative itself makes tensors with gradients of its own; those are new each time.
        """
        if self._judged:
            return
        self._judged = True
        found = _sources(results, self._declared)
        leaked = found.keys() & _sources(again(), self._declared).keys() if found else set()
        if leaked:
            shapes = ", ".join(str(tuple(found[key].shape)) for key in leaked)
            raise DifferentiationError(
                f"the field uses {len(leaked)} tensors with gradients ({shapes}) that neither its module holds nor the caller named, so "
                f"gradient={self._gradient!r} would give them none; pass them as parameters=(...), make them parameters of the field's "
                "module, or use gradient='checkpoint'"
            )


def _sources(results: Iterable[Tensor], declared: tuple[Tensor, ...]) -> dict[int, Tensor]:
    """Leaves with gradients from which `results` were computed, by identity, looking no further than `declared`."""
    known = {id(tensor) for tensor in declared}
    stops = {tensor.grad_fn for tensor in declared if tensor.grad_fn is not None}
    found: dict[int, Tensor] = {}
    waiting: list[Any] = [result.grad_fn for result in results if result.grad_fn is not None]
    found.update((id(result), result) for result in results if result.requires_grad and result.grad_fn is None and id(result) not in known)
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node in seen or node in stops:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in known:
            found[id(leaf)] = leaf
        waiting += [following for following, _ in node.next_functions if following is not None]
    return found
