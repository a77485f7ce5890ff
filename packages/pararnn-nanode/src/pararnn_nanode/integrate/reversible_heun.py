"""Reversible Heun: second order, one evaluation a step, and every step can be undone exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pararnn_nanode.fields.base import Weights
from pararnn_nanode.integrate.methods import Evaluate, State, Width, advance
from pararnn_nanode.integrate.undoing import Place, ReversibleMethod


@dataclass(eq=False)
class _Back:
    """`x` lacks `-lacking/2` of the slope at `z` where `lacking` is a width; `owed` is the derivative by that width that the slope brings.

    The derivative by the slope that the later step used is `pending[1] * pending[0]`, and `taken` is minus the derivative by `z`.
    """

    x: Tensor
    z: Tensor
    by_x: Tensor
    taken: Tensor | None = None
    pending: tuple[Tensor, Width] | None = None
    lacking: Width | None = None
    owed: Tensor | None = None

    def settle(self, slope: Tensor, place: Place, *, later: int) -> None:
        """Bring `x` what it lacks of the slope at `z`."""
        if self.lacking is not None:
            self.x = advance(self.x, slope, self.lacking * -0.5)
        if self.owed is not None:
            place.by_width(slope.conj() * self.owed, later)
        self.lacking = self.owed = None


class ReversibleHeun(ReversibleMethod):
    """`z' = 2x - z + h f(t, z)` and `x' = x + h/2 (f(t, z) + f(t', z'))`, with `z = x` at first.

    The state is `(x, z, f(t, z))`. Unstable where the equation is dissipative: there `z` parts from `x` and grows.

    Source: Kidger, Foster, Li, Lyons, "Efficient and accurate gradients for neural SDEs" (2021), algorithms 1 and 2, without noise.
    """

    name = "reversible_heun"
    order = 2
    nodes = (1.0,)
    evaluations = 1
    opening: Literal["never", "first", "jump"] = "jump"
    reversible = True

    def begin(self, x: Tensor) -> State:
        return x, x, x

    def open(self, evaluate: Evaluate, state: State, weights: Weights) -> State:
        x, z, _ = state
        return x, z, evaluate(z, weights)

    def step(self, evaluate: Evaluate, state: State, h: Width, weights: tuple[Weights, ...]) -> State:
        x, z, slope = state
        ahead = advance(_mirrored(z, x), slope, h)
        new = evaluate(ahead, weights[0])
        return advance(x, slope + new, h * 0.5), ahead, new

    def turn(self, state: State, by_x: Tensor) -> _Back:
        return _Back(x=state[0], z=state[1], by_x=by_x)

    def undo(self, back: _Back, place: Place) -> None:
        # The slope at the end of the step is what the later step has been waiting for, and its pullback is due now that all its uses are known.
        slope, pull = place.evaluate(back.z)
        half = place.h * 0.5
        pulled = pull(_used(back, half))
        by_z = pulled if back.taken is None else pulled - back.taken
        if place.asked:
            back.settle(slope, place, later=1)
        # What the later step lacks and what this one takes are multiples of one slope.
        taken = place.h if back.lacking is None else place.h + back.lacking
        back.z = advance(_mirrored(back.z, back.x), slope, -taken)
        back.x = advance(back.x, slope, taken * -0.5)
        back.lacking = place.h
        if place.asked:
            back.owed = by_z + 0.5 * back.by_x
            place.by_width(0.5 * slope.conj() * back.by_x)
        back.by_x = torch.add(back.by_x, by_z, alpha=2)
        back.pending = back.by_x, half
        back.taken = by_z

    def close(self, back: _Back, place: Place) -> None:
        slope, pull = place.evaluate(back.z)
        back.settle(slope, place, later=0)
        if back.pending is not None:
            by_x, half = back.pending
            pulled = pull(by_x * half)
            back.taken = -pulled if back.taken is None else back.taken - pulled
        back.pending = None

    def finish(self, back: _Back) -> tuple[Tensor, tuple[Tensor, ...]]:
        return back.by_x if back.taken is None else back.by_x - back.taken, (back.x, back.z)

    def gap(self, state: State, h: Width) -> Tensor:
        return (state[0] - state[1]).abs()


def _used(back: _Back, half: Width) -> Tensor:
    """The derivative by the slope at the end of a step, of which this step uses `half` and the later one may have used more."""
    if back.pending is None:
        return back.by_x * half
    by_later, later = back.pending
    # The same tensor unless the loss sees the state between the two steps.
    return back.by_x * (half + later) if by_later is back.by_x else advance(by_later * later, back.by_x, half)


def _mirrored(z: Tensor, x: Tensor) -> Tensor:
    """`2x - z` in one operation."""
    return torch.lerp(z, x, 2.0)


REVERSIBLE_HEUN = ReversibleHeun()
