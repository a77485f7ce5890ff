"""The asynchronous leapfrog method: second order, one evaluation a step, and every undamped step can be undone exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_nanode.fields.base import Weights
from pararnn_nanode.integrate.methods import Evaluate, State, Width, advance
from pararnn_nanode.integrate.undoing import Place, ReversibleMethod


@dataclass(eq=False)
class _Back:
    """`twice` is two times the derivative by `v`, which is what the slope gets of it."""

    x: Tensor
    v: Tensor
    by_x: Tensor
    twice: Tensor | None = None


class ALF(ReversibleMethod):
    """`m = x + h/2 v`, `v' = v + 2 damping (f(t + h/2, m) - v)` and `x' = m + h/2 v'`, with `v = f(t, x)` at first.

    Args:
        damping: 1 for the reversible method, of second order; less makes it stable for dissipative equations, at the price of reversibility and of
            an order.

    Source: Zhuang et al., "MALI: a memory efficient and reverse accurate integrator for neural ODEs" (2021), algorithms 2 and 3, appendix A.5.
    """

    nodes = (0.5,)
    evaluations = 1
    opening: Literal["never", "first", "jump"] = "first"

    def __init__(self, *, damping: float = 1.0) -> None:
        if not 0.5 < damping <= 1:
            raise ConfigError(f"the damping of ALF lies above 0.5 and is at most 1, got {damping}")
        self.damping = damping
        self.reversible = damping == 1
        self.order = 2 if self.reversible else 1
        self.name = "alf" if self.reversible else f"alf (damping {damping:g})"

    def begin(self, x: Tensor) -> State:
        return x, x

    def open(self, evaluate: Evaluate, state: State, weights: Weights) -> State:
        return state[0], evaluate(state[0], weights)

    def step(self, evaluate: Evaluate, state: State, h: Width, weights: tuple[Weights, ...]) -> State:
        x, v = state
        middle = advance(x, v, h * 0.5)
        slope = evaluate(middle, weights[0])
        new = torch.lerp(v, slope, 2 * self.damping)
        return advance(middle, new, h * 0.5), new

    def turn(self, state: State, by_x: Tensor) -> _Back:
        return _Back(x=state[0], v=state[1], by_x=by_x)

    def undo(self, back: _Back, place: Place) -> None:
        half = place.h * 0.5
        middle = advance(back.x, back.v, -half)
        slope, pull = place.evaluate(middle)
        new, back.v = back.v, torch.lerp(back.v, slope, 2.0)
        back.x = advance(middle, back.v, -half)
        by_slope = place.h * back.by_x if back.twice is None else advance(back.twice, back.by_x, place.h)
        by_middle = back.by_x + pull(by_slope)
        if place.asked:
            place.by_width(0.5 * (new.conj() * back.by_x + back.v.conj() * by_middle))
        back.by_x = by_middle
        back.twice = place.h * by_middle - by_slope

    def close(self, back: _Back, place: Place) -> None:
        _, pull = place.evaluate(back.x)
        if back.twice is not None:
            back.by_x = back.by_x + pull(0.5 * back.twice)

    def finish(self, back: _Back) -> tuple[Tensor, tuple[Tensor, ...]]:
        return back.by_x, (back.x,)

    def gap(self, state: State, h: Width) -> Tensor:
        # A parasitic mode of a decaying equation shows as h v of about 4 x or more; a walk from small states may well have h v of about x.
        return 0.25 * (h * state[1]).abs()


ALF_METHOD = ALF()
