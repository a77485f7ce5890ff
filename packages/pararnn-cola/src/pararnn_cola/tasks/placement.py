"""Where in a sequence a task asks for an answer, as weights of the loss over time."""

from __future__ import annotations

import math
from fractions import Fraction
from numbers import Real
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from pararnn.errors import ConfigError

Placement: TypeAlias = Literal["every", "last"] | float
"""Which steps have a loss: all of them, the last one, or the last share of them."""


def loss_weights(length: int, placement: Placement) -> Tensor:
    """Weights `(length,)` of the loss over time, which sum to 1: the steps that have a loss share it equally.

    `placement` "every" is all steps, "last" the last one, and a share in (0, 1] the last `ceil(share * length)` steps.

    Raises:
        ConfigError: `length` is below 1, or `placement` is none of these.
    """
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise ConfigError(f"length={length!r}; a sequence has a whole number of steps, at least 1", length=length)
    answered = _answered(length, placement)
    weights = torch.zeros(length)
    weights[length - answered :] = 1 / answered
    return weights


def _answered(length: int, placement: Placement) -> int:
    if placement == "every":
        return length
    if placement == "last":
        return 1
    if isinstance(placement, bool | str) or not isinstance(placement, Real) or not 0 < placement <= 1:
        raise ConfigError(
            f'placement={placement!r}; the loss is at "every" step, at the "last" one, or on a share in (0, 1] of the steps, the last ones',
            placement=placement,
        )
    # The decimal that was written, not its binary neighbour: 0.1 of 30 steps is 3, though 0.1 * 30 in floating point lies above 3.
    return math.ceil(Fraction(str(placement)) * length)
