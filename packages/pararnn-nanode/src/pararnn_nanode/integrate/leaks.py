"""Tensors with gradients that a field uses although nobody named them: methods that evaluate it again later would lose their gradient."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import DifferentiationError
from pararnn_nanode.fields.base import Formula, Weights
from pararnn_nanode.integrate.methods import Equation

REMEMBERED = 8
"""Evaluations whose tensors are remembered, more than the stages of any method here."""


class Watched:
    """An equation whose known tensors are all cut from the graph, so that a result with a gradient betrays an unknown one.

    Args:
        gradient: what the gradient is had by, for messages.
    """

    def __init__(self, equation: Equation, gradient: str) -> None:
        self._equation = equation
        self._gradient = gradient
        self._own: set[tuple[torch.Size, ...]] = set()
        self._recent: deque[dict[int, Tensor]] = deque(maxlen=REMEMBERED)

    def weights(self, times: Tensor, anchors: Tensor | None = None, u: Tensor | None = None) -> Weights:
        leaves = self._equation.weights(times, anchors, u)
        if any(leaf.requires_grad for leaf in leaves):
            self._judge(_sources(leaves), lambda: _sources(self._equation.weights(times, anchors, u)))
            leaves = tuple(leaf.detach() for leaf in leaves)
        return leaves

    def evaluate(self, x: Tensor, weights: Weights) -> Tensor:
        # A field that takes a derivative itself may call requires_grad_ on its argument; the state must not see that.
        slope, sources = self._evaluated(x, weights)
        if sources:
            self._judge(sources, lambda: self._evaluated(x, weights)[1])
        return slope

    def differentiate(self, x: Tensor, weights: Weights) -> Formula | None:
        return None

    def _evaluated(self, x: Tensor, weights: Weights) -> tuple[Tensor, dict[int, Tensor]]:
        point = x.detach()
        slope = self._equation.evaluate(point, weights)
        if not slope.requires_grad:
            return slope, {}
        return slope.detach(), {key: leaf for key, leaf in _sources((slope,)).items() if leaf is not point}

    def _judge(self, found: dict[int, Tensor], again: Callable[[], dict[int, Tensor]]) -> None:
        """Raise where the same tensor with a gradient is met in two evaluations.

        A field that takes a derivative itself makes tensors with gradients of its own; those are new each time. Where tensors of other shapes than
        before are met, the evaluation is repeated on the spot.
        """
        kinds = tuple(sorted(leaf.shape for leaf in found.values()))
        leaked = {key: leaf for earlier in self._recent for key, leaf in found.items() if key in earlier}
        self._recent.append(found)
        if kinds not in self._own and not leaked:
            repeated = again()
            leaked = {key: leaf for key, leaf in found.items() if key in repeated}
            self._own.add(kinds)
        if leaked:
            shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaked.values())
            raise DifferentiationError(
                f"the field uses {len(leaked)} tensors with gradients ({shapes}) that neither its module holds nor the caller named, so "
                f"gradient={self._gradient!r} would give them none; pass them as parameters=(...), as they are when the field reads them, make them "
                "parameters of the field's module, or use gradient='checkpoint'"
            )


def _sources(results: Iterable[Tensor]) -> dict[int, Tensor]:
    """Leaves with gradients from which `results` were computed, by identity."""
    found: dict[int, Tensor] = {id(result): result for result in results if result.requires_grad and result.grad_fn is None}
    waiting: list[Any] = [result.grad_fn for result in results if result.grad_fn is not None]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found[id(leaf)] = leaf
        waiting += [following for following, _ in node.next_functions if following is not None]
    return found
