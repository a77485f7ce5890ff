"""The walk itself: one step after another, keeping the states that are asked for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from pararnn.transforms import inside_transform
from pararnn_nanode.errors import NonFiniteStateError, UnstableMethodWarning
from pararnn_nanode.integrate.methods import Equation, Method, State, Width
from pararnn_nanode.integrate.reads import Drive, Reads, rows
from pararnn_nanode.integrate.schedule import Schedule
from pararnn_nanode.integrate.stability import advice, of_sample, parted

Progress: TypeAlias = Callable[[int, int], object]

BLOCK = 16
"""Steps whose weights exist at a time, where they are not all kept."""


@dataclass(eq=False)
class Report:
    """What a walk has to say: a sentence for `Solution.reason`, after a walk back how far it drifted, and what the method carries at the end."""

    reason: str = ""
    last: State | None = None
    drift: float | None = None
    told: Callable[[float], None] | None = None

    def drifted(self, drift: float) -> None:
        """Note the drift, also in the solution where that still exists."""
        self.drift = drift
        if self.told is not None:
            self.told(drift)


@dataclass(frozen=True, kw_only=True, eq=False)
class Walk:
    """A walk that is about to be taken.

    Attributes:
        widths: length of each step as the method takes it: a number, or a tensor that broadcasts against the state, in its precision.
        parameters: tensors outside the field's module that the field depends on, where the caller named any.
        progress: called with the number of steps done and of all steps after each.
        report: where the gradient leaves what it has to say, for those that have anything, and the last state of a method that may be unstable.
    """

    field: Equation
    method: Method
    schedule: Schedule
    reads: Reads
    widths: list[Width]
    u: Drive = None
    parameters: tuple[Tensor, ...] = ()
    progress: Progress | None = None
    report: Report | None = None

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.schedule.steps

    @property
    def nfe(self) -> int:
        """Evaluations of the field."""
        return self.steps * self.method.evaluations + len(self.reads.opened)


def widths(schedule: Schedule, x: Tensor) -> list[Width]:
    """The length of each step, for a method that steps a state shaped as `x`."""
    if not isinstance(schedule.widths, Tensor):
        return list(schedule.widths)
    cast = schedule.widths.to(device=x.device, dtype=x.dtype.to_real())
    return list(cast.view(*cast.shape, *(1,) * (x.ndim - cast.ndim + 1)).unbind(0) if cast.ndim > 1 else cast.unbind(0))


def advance_between(walk: Walk, state: State, first: int, last: int, wanted: Container[int] = ()) -> tuple[State, dict[int, Tensor]]:
    """The state at knot `last` from that at knot `first`, and `x` at those of the knots after `first` that are wanted."""
    field, method, sizes = walk.field, walk.method, walk.widths
    step, evaluate, progress, steps = method.step, field.evaluate, walk.progress, walk.steps
    opened, opening = walk.reads.opening(field, first, last, walk.u)
    starts = dict(zip(opened, rows(opening, 1), strict=True)) if opened else {}
    weights = rows(walk.reads.weights(field, first, last, walk.u), len(method.nodes)) if last > first else []
    kept = {}
    for k in range(first, last):
        if k in starts:
            state = method.open(evaluate, state, starts[k][0])
        state = step(evaluate, state, sizes[k], weights[k - first])
        if k + 1 in wanted:
            kept[k + 1] = state[0]
        if progress is not None:
            progress(k + 1, steps)
    return state, kept


def backprop(walk: Walk, x: Tensor) -> Tensor:
    """States at the asked times, every step on the graph."""
    outputs = walk.schedule.outputs
    last, kept = advance_between(walk, walk.method.begin(x), 0, walk.steps, outputs if len(outputs) < 9 else frozenset(outputs))
    if walk.report is not None:
        walk.report.last = last
    return gather(walk, x, kept)


def walk_in_blocks(walk: Walk, x: Tensor) -> tuple[Tensor, State]:
    """States at the asked times and the last state, with the weights of no more than `BLOCK` steps at a time."""
    wanted = frozenset(walk.schedule.outputs)
    kept: dict[int, Tensor] = {}
    state = walk.method.begin(x)
    for first in range(0, walk.steps, BLOCK):
        state, found = advance_between(walk, state, first, min(first + BLOCK, walk.steps), wanted)
        kept.update(found)
    return gather(walk, x, kept), state


def gather(walk: Walk, x: Tensor, kept: dict[int, Tensor]) -> Tensor:
    """The asked ones of the states at knots, in their order; `x` is the one at the first knot."""
    found = [x if index == 0 else kept[index] for index in walk.schedule.outputs]
    # Stacked even if it is one where that is x, which an edit of the answer must not reach.
    return torch.stack(found) if len(found) > 1 or walk.schedule.outputs[0] == 0 else found[0].unsqueeze(0)


def hidden(x: Tensor) -> bool:
    """Whether the numbers of `x` cannot be looked at now."""
    return torch.compiler.is_compiling() or inside_transform() or x.is_meta or (x.is_cuda and torch.cuda.is_current_stream_capturing())


def check_finite(walk: Walk, x: Tensor, states: Tensor) -> None:
    """Raise where a state is not finite. One look at the values; a second walk finds the step only where there is something to tell.

    Warns `UnstableMethodWarning` where what a reversible method carries beside the state has grown beyond it.

    Raises:
        NonFiniteStateError: with `time` and `step`, the first after which the state is not finite (0: the initial state).
    """
    last = walk.report.last if walk.report is not None else None
    if walk.report is not None:
        walk.report.last = None
    if hidden(states):
        return
    finite = torch.isfinite(states).all()
    if last is None or walk.steps <= BLOCK:
        if bool(finite):
            return
    else:
        size = of_sample(torch.maximum(x.detach().abs(), last[0].detach().abs()))
        ratio = parted(walk.method, tuple(part.detach() for part in last), walk.widths[-1], size)
        whole, grown = torch.stack((finite.to(ratio.dtype), ratio)).tolist()
        if whole:
            if grown > 1:
                warnings.warn(f"{advice(walk.method, grown)}; take another method, such as 'heun' or 'midpoint'", UnstableMethodWarning, stacklevel=2)
            return
    with torch.no_grad():
        again = replace(walk, progress=None)
        _, kept = advance_between(again, walk.method.begin(x.detach()), 0, walk.steps, range(1, walk.steps + 1))
    step = next((k for k, state in {0: x, **kept}.items() if not bool(torch.isfinite(state).all())), walk.steps)
    knot = walk.schedule.knots[step].detach()
    time = float(knot) if knot.ndim == 0 else float(knot.flatten()[0])
    what = "x itself holds NaN or infinity" if step == 0 else "take more steps, or weights of smaller norm"
    raise NonFiniteStateError(
        f"the state is no longer finite after step {step} of {walk.steps} of {walk.method.name} at t = {time:.6g}; {what}", time=time, step=step
    )
