"""What happens to a solution where its start or its end moves and the times of jumps do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from pararnn_nanode.integrate.steps import Cost, Problem


def beside(time: float, other: float, jumps: Sequence[float]) -> float:
    """The lower end of a step that lies between `time` and `other`, has an end at `time` and crosses none of the `jumps`."""
    between = [jump for jump in jumps if min(time, other) < jump < max(time, other)]
    return min(time, min(between, key=lambda jump: abs(jump - time), default=other))


def crossed(start: float, end: float, jumps: Sequence[float]) -> bool:
    """Whether one of `jumps` lies between two times, the second of which may be infinite."""
    return any(min(start, end) < jump < max(start, end) for jump in jumps)


def set_back(problem: Problem, x: Tensor, start: float, end: float, cost: Cost) -> tuple[Problem, Tensor]:
    """The problem with a start that stays, and the state there of the solution that is at `x` when the time is `start` and the lift of `problem`.

    A lift moves all times of a walk along, which is the cheap way to a gradient of its start, but not right where a jump stays. The state is `x` in
    value, and depends on the lift right to the second derivative.
    """
    if problem.lift is None or not crossed(start, end, problem.jumps):
        return problem, x
    anchor = beside(start, end, problem.jumps)
    lift = problem.lift.to(x.dtype.to_real())
    slope = problem.slope(x, start, anchor)
    middle = dataclasses.replace(problem, lift=problem.lift / 2).slope(x - lift / 2 * slope, start, anchor)
    cost.nfe += 2
    return dataclasses.replace(problem, lift=None), x - lift * middle
