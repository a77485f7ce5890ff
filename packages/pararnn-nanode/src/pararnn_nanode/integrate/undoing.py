"""What a method must offer so that its steps can be undone, exactly and with their derivative."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from pararnn_nanode.integrate.methods import Method, State, Width

Pullback = Callable[[Tensor], Tensor]


class Place(Protocol):
    """The step that is being undone.

    Attributes:
        h: its length.
    """

    h: Width

    @property
    def asked(self) -> bool:
        """Whether derivatives by lengths of steps are asked for."""
        ...

    def evaluate(self, x: Tensor) -> tuple[Tensor, Pullback]:
        """The field at `x` with the weights of this step, and what takes the cotangent of that to the one of `x`."""
        ...

    def by_width(self, product: Tensor, later: int = 0) -> None:
        """Add a derivative by the length of this step, or of that which came `later`, shaped as the state."""
        ...


class Back(Protocol):
    """Where a walk backwards stands: what is known of the state, and the derivatives of the loss by it.

    Attributes:
        x: the state; between steps it may lack a part that the next evaluation brings.
        by_x: the derivative of the loss by `x`.
    """

    x: Tensor
    by_x: Tensor


class ReversibleMethod(Method):
    """A method whose every step can be undone from its result, with one evaluation of the field that serves the derivative too."""

    @abc.abstractmethod
    def turn(self, state: State, by_x: Tensor) -> Any:
        """The `Back` at the end of a walk, with the derivative of the loss by its last `x`."""

    @abc.abstractmethod
    def undo(self, back: Any, place: Place) -> None:
        """Take `back` from the end of a step to its start."""

    @abc.abstractmethod
    def close(self, back: Any, place: Place) -> None:
        """Take `back` from after `open` to before it; `place` evaluates with the weights at the start of the step."""

    @abc.abstractmethod
    def finish(self, back: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The derivative by the initial `x`, and what should equal that `x`."""

    @abc.abstractmethod
    def gap(self, state: State, h: Width) -> Tensor:
        """How far what the method carries has parted from each element of `x`: about as large as `x` at most while the method is stable."""
