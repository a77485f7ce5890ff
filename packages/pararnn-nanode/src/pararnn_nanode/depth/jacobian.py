"""The derivative of a field by its state, at many states at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn.structures import Dense, Diagonal, Structure
from pararnn.structures.base import push_forward
from pararnn_nanode.fields.base import Field, Weights
from pararnn_nanode.fields.dense import DenseField
from pararnn_nanode.fields.diagonal import DiagonalField
from pararnn_nanode.fields.layer import ACTIVATIONS, LayerField

Linearize: TypeAlias = Callable[[Any, Tensor, Weights], tuple[Tensor, Structure]]


def linearize(field: Field, x: Tensor, weights: Weights) -> tuple[Tensor, Structure]:
    """`f` at states `x` `(*lead, *batch, channels)` and its derivative there, with leaves `(*lead, *batch, ...)`.

    By the field's own `linearize(x, weights)` where it has one, by a formula where the evaluation of the field is one known here, else by pushing
    directions through it.

    Raises:
        ConfigError: the field does not say what structure its Jacobian has.
    """
    own: Any = getattr(field, "linearize", None)
    if own is not None:
        found: tuple[Tensor, Structure] = own(x, weights)
        return found
    formula = FORMULAS.get(type(field).evaluate)
    if formula is not None:
        return formula(field, x, weights)
    return structure_of(field).linearize(lambda state: field.evaluate(state, weights), x)


def structure_of(field: Field) -> type[Structure]:
    """The structure of the Jacobian of `field`.

    Raises:
        ConfigError: the field does not say.
    """
    if field.structure is None:
        raise ConfigError(
            f"{type(field).__name__} does not say what structure its Jacobian has, which a Newton iteration over depth needs; "
            "set `structure = pararnn.structures.Dense` (for vectors of few channels), or use parallel='picard'"
        )
    return field.structure


def _dense(field: DenseField, x: Tensor, weights: Weights) -> tuple[Tensor, Structure]:
    matrix = weights[0]
    lead = matrix.ndim - 2
    value, slope = _activated(field, x, weights, lead, product=lambda: field.product(matrix, x))
    batch = x.ndim - lead - 1
    return value, Dense(slope.unsqueeze(-1) * matrix.reshape(*matrix.shape[:-2], *(1,) * batch, *matrix.shape[-2:]))


def _diagonal(field: DiagonalField, x: Tensor, weights: Weights) -> tuple[Tensor, Structure]:
    scale = field.spread(weights[0], x.ndim)
    value, slope = _activated(field, x, weights, weights[0].ndim - 1, product=lambda: scale * x)
    return value, Diagonal(slope * scale)


def _activated(field: LayerField, x: Tensor, weights: Weights, lead: int, *, product: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """`f` at `x`, and the slope of its activation."""
    if field.activation is None or (isinstance(field.activation, str) and field.activation in SLOPES):
        value = field.evaluate(x, weights)
        return value, torch.ones_like(value) if field.activation is None else SLOPES[field.activation](value)
    pre = product()
    for drive in weights[1:]:
        pre = pre + (field.spread(drive, x.ndim) if drive.ndim == lead + 1 else drive)
    return push_forward(ACTIVATIONS[field.activation] if isinstance(field.activation, str) else field.activation, pre, torch.ones_like(pre))


# Slopes of activations from their values.
SLOPES: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": lambda value: 1 - value.square(),
    "sigmoid": lambda value: value - value.square(),
    "relu": lambda value: (value > 0).to(value.dtype),
}
# By the function that evaluates, so that a subclass with another one does not inherit a formula that no longer describes it.
FORMULAS: dict[Any, Linearize] = {DenseField.evaluate: _dense, DiagonalField.evaluate: _diagonal}
