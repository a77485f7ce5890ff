"""Explicit Runge-Kutta methods, each by its tableau."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pararnn_nanode.fields.base import Weights
from pararnn_nanode.integrate.methods import Evaluate, Method, State, Width, advance


@dataclass(frozen=True, kw_only=True)
class RungeKutta(Method):
    """`k_i = f(t + c_i h, x + h sum_j a_ij k_j)` and `x + h sum_i b_i k_i`.

    Args:
        stages: rows of `a` below the diagonal, one for each stage after the first.
        combination: `b`.
        reads: for each stage, which of `nodes` its weights belong to: `c_i = nodes[reads[i]]`.

    Source: Butcher, "Numerical methods for ordinary differential equations" (2016), section 23.
    """

    name: str
    order: int
    nodes: tuple[float, ...]
    stages: tuple[tuple[float, ...], ...]
    combination: tuple[float, ...]
    reads: tuple[int, ...]

    @property
    def evaluations(self) -> int:  # type: ignore[override]
        return len(self.combination)

    def step(self, evaluate: Evaluate, state: State, h: Width, weights: tuple[Weights, ...]) -> State:
        (x,) = state
        slopes = [evaluate(x, weights[0])]
        for row, read in zip(self.stages, self.reads[1:], strict=True):
            slopes.append(evaluate(combine(x, slopes, row, h), weights[read]))
        return (combine(x, slopes, self.combination, h),)


@dataclass(frozen=True, kw_only=True)
class _Euler(RungeKutta):
    """The same arithmetic as the tableau's, without its loops: long walks of small states are bound by the interpreter."""

    def step(self, evaluate: Evaluate, state: State, h: Width, weights: tuple[Weights, ...]) -> State:
        x = state[0]
        slope = evaluate(x, weights[0])
        return (x + h * slope if isinstance(h, Tensor) else torch.add(x, slope, alpha=h),)


def combine(x: Tensor, slopes: list[Tensor], factors: tuple[float, ...], h: Width) -> Tensor:
    """`x + h sum_j factors_j slopes_j`."""
    for slope, factor in zip(slopes, factors, strict=True):
        if factor:
            x = advance(x, slope, h * factor)
    return x


EULER = _Euler(name="euler", order=1, nodes=(0.0,), stages=(), combination=(1.0,), reads=(0,))
MIDPOINT = RungeKutta(name="midpoint", order=2, nodes=(0.0, 0.5), stages=((0.5,),), combination=(0.0, 1.0), reads=(0, 1))
HEUN = RungeKutta(name="heun", order=2, nodes=(0.0, 1.0), stages=((1.0,),), combination=(0.5, 0.5), reads=(0, 1))
RK4 = RungeKutta(
    name="rk4",
    order=4,
    nodes=(0.0, 0.5, 1.0),
    stages=((0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)),
    combination=(1 / 6, 1 / 3, 1 / 3, 1 / 6),
    reads=(0, 1, 1, 2),
)
RK4_38 = RungeKutta(
    name="rk4_38",
    order=4,
    nodes=(0.0, 1 / 3, 2 / 3, 1.0),
    stages=((1 / 3,), (-1 / 3, 1.0), (1.0, -1.0, 1.0)),
    combination=(1 / 8, 3 / 8, 3 / 8, 1 / 8),
    reads=(0, 1, 2, 3),
)
