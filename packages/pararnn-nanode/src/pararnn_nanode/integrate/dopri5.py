"""Pairs of Runge-Kutta methods with an error estimate, and one step of such a pair."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pararnn_nanode.fields.base import Field, Weights

Terms = tuple[tuple[int, float], ...]


def _terms(row: Sequence[float]) -> Terms:
    return tuple((index, value) for index, value in enumerate(row) if value != 0.0)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """An explicit method whose last stage is the slope at the end of the step, so that the next step starts with it.

    Attributes:
        order: of the solution that is carried on; the estimate is that of a method one order lower.
        nodes: times of the stages after the first, as fractions of the step; the last is 1.
        rows: weights of the slopes for each of those stages; the last row gives the end of the step.
        error: weights of all slopes in the error estimate.
        dense: weights of all slopes in the quartic term of the interpolant; empty where the cubic through both ends is as good as the method.
    """

    order: int
    nodes: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...]
    error: tuple[float, ...]
    dense: tuple[float, ...] = ()
    stages: tuple[Terms, ...] = dataclasses.field(init=False)
    estimate: Terms = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(_terms(row) for row in self.rows))
        object.__setattr__(self, "estimate", _terms(self.error))


# Dormand and Prince (1980), J. Comput. Appl. Math. 6; the quartic term from Hairer, Norsett and Wanner, Solving ODEs I, II.6.
DOPRI5 = Pair(
    order=5,
    nodes=(1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0),
    rows=(
        (1 / 5,),
        (3 / 40, 9 / 40),
        (44 / 45, -56 / 15, 32 / 9),
        (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
        (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
        (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
    ),
    error=(71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40),
    dense=(
        -12715105075 / 11282082432,
        0.0,
        87487479700 / 32700410799,
        -10690763975 / 1880347072,
        701980252875 / 199316789632,
        -1453857185 / 822651844,
        69997945 / 29380423,
    ),
)
# Bogacki and Shampine (1989), Appl. Math. Lett. 2.
BOSH3 = Pair(
    order=3,
    nodes=(1 / 2, 3 / 4, 1.0),
    rows=((1 / 2,), (0.0, 3 / 4), (2 / 9, 1 / 3, 4 / 9)),
    error=(-5 / 72, 1 / 12, 1 / 9, -1 / 8),
)
# Fehlberg (1969), NASA TR R-315, the pair of orders 2 and 1.
FEHLBERG2 = Pair(
    order=2,
    nodes=(1 / 2, 1.0, 1.0),
    rows=((1 / 2,), (1 / 256, 255 / 256), (1 / 512, 255 / 256, 1 / 512)),
    error=(-1 / 512, 0.0, 1 / 512),
)
# Heun's method with the Euler step inside it as the estimate.
ADAPTIVE_HEUN = Pair(order=2, nodes=(1.0, 1.0), rows=((1.0,), (1 / 2, 1 / 2)), error=(-1 / 2, 1 / 2))

PAIRS = {"dopri5": DOPRI5, "bosh3": BOSH3, "fehlberg2": FEHLBERG2, "adaptive_heun": ADAPTIVE_HEUN}


class Step(NamedTuple):
    """One step of signed `length` from `x` at `start` to `end` at `finish`; `slopes` are those of all stages."""

    start: float
    length: float
    finish: float
    x: Tensor
    end: Tensor
    slopes: list[Tensor]


def attempt(pair: Pair, field: Field, x: Tensor, slope: Tensor, weights: Sequence[Weights], start: float, length: float, finish: float) -> Step:
    """One step of `pair` from `x`, where the slope is `slope`; `weights` are those of the stages after the first."""
    slopes = [slope]
    point = x
    for terms, weight in zip(pair.stages, weights, strict=True):
        point = x
        for index, value in terms:
            # A number as the factor: nothing is saved for the backward pass, and a product would.
            point = torch.add(point, slopes[index], alpha=length * value)
        slopes.append(field.evaluate(point, weight))
    return Step(start, length, finish, x, point, slopes)
