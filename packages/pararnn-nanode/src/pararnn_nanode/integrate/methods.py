"""What a fixed-step method is."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from pararnn_nanode.fields.base import Formula, Weights

Evaluate: TypeAlias = Callable[[Tensor, Weights], Tensor]
State: TypeAlias = tuple[Tensor, ...]
Width: TypeAlias = float | Tensor


class Equation(Protocol):
    """What a walk needs of a field."""

    def weights(self, times: Tensor, anchors: Tensor | None = None, u: Tensor | None = None) -> Weights:
        """See `Field.weights`."""
        ...

    def evaluate(self, x: Tensor, weights: Weights) -> Tensor:
        """See `Field.evaluate`."""
        ...

    def differentiate(self, x: Tensor, weights: Weights) -> Formula | None:
        """See `Field.differentiate`."""
        ...


class Method(abc.ABC):
    """One way to take a step.

    A method sees weights that were read for it: those of the times `t + node * h` for each of its `nodes`. Its state is a tuple of tensors shaped as
    `x`, `x` first.

    Attributes:
        name: what it is called in messages.
        order: the power of the step with which its error falls.
        nodes: where in a step it reads weights, as parts of the step.
        evaluations: evaluations of the field a step.
        opening: before which steps `open` is called: "never", the "first" one, or also wherever the weights "jump".
        reversible: whether a step can be undone exactly, so that `gradient="reversible"` can serve it.
    """

    name: str
    order: int
    nodes: tuple[float, ...]
    evaluations: int
    opening: Literal["never", "first", "jump"] = "never"
    reversible: bool = False

    def begin(self, x: Tensor) -> State:
        """The state of the method at an initial `x`."""
        return (x,)

    def open(self, evaluate: Evaluate, state: State, weights: Weights) -> State:
        """The state with whatever it carries computed anew from the weights at the start of a step."""
        return state

    @abc.abstractmethod
    def step(self, evaluate: Evaluate, state: State, h: Width, weights: tuple[Weights, ...]) -> State:
        """The state after one step of length `h` (a number, or a tensor that broadcasts against `x`)."""


def advance(x: Tensor, slope: Tensor, h: Width) -> Tensor:
    """`x + h * slope`."""
    return x + h * slope if isinstance(h, Tensor) else torch.add(x, slope, alpha=h)
