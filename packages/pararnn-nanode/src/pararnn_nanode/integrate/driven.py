"""A field together with its inputs, so that those who integrate it need not know of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from pararnn_nanode.fields.base import Field, Weights

Inputs: TypeAlias = Callable[[Tensor], Tensor]


class Driven(Field):
    """`f(t, x, u(t))` as an equation of `t` and `x`.

    Args:
        u: inputs `(*batch, ...)` for all times, or a function of float64 times `(n,)` or `(n, samples)` that gives `(n, *batch, ...)`.
    """

    u: Tensor | None

    def __init__(self, field: Field, u: Tensor | Inputs) -> None:
        super().__init__()
        self.field = field
        self.function = None if isinstance(u, Tensor) else u
        # A buffer, so that what captures a field for later captures its inputs too.
        self.register_buffer("u", u if isinstance(u, Tensor) else None, persistent=False)

    def weights(self, times: Tensor, anchors: Tensor | None = None, u: Tensor | None = None) -> Weights:
        if self.u is not None:
            u = self.u.expand(times.shape[0], *self.u.shape)
        elif self.function is not None:
            u = self.function(times)
        return self.field.weights(times, anchors, u)

    def evaluate(self, x: Tensor, weights: Weights) -> Tensor:
        return self.field.evaluate(x, weights)

    def edges(self) -> tuple[float, ...]:
        return self.field.edges()


def driven(field: Field, u: Tensor | Inputs | None) -> Field:
    """`field` with its inputs, where there are any."""
    return field if u is None else Driven(field, u)
