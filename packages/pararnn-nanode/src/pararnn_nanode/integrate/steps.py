"""The walk of an adaptive method: accepted steps, one after another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from pararnn.errors import ShapeError
from pararnn_nanode.errors import NonFiniteStateError, StepUnderflowError
from pararnn_nanode.fields.base import Field, Weights
from pararnn_nanode.integrate.controller import Controller, reveal
from pararnn_nanode.integrate.dopri5 import Pair, Step, attempt

Watch: TypeAlias = Callable[[str, float, Tensor, float], None]


@dataclass
class Cost:
    """What a walk has cost so far."""

    nfe: int = 0
    steps: int = 0
    rejected: int = 0


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The equation and how its time is read.

    Attributes:
        lift: a float64 zero that carries the gradient of the start time into all times of the walk; None where there is none.
        jumps: times where some weight or the field jumps, sorted in the direction of the walk: steps end there, and the slope is computed anew.
        corners: times where steps only end.
    """

    pair: Pair
    field: Field
    lift: Tensor | None = None
    jumps: Sequence[float] = ()
    corners: Sequence[float] = ()

    def weights(self, times: Tensor, anchor: float) -> Weights:
        """Weights of the field at `times`, which all belong to one step with the lower end `anchor`."""
        if self.lift is not None:
            times = times + self.lift
        return self.field.weights(times, torch.full_like(times, anchor))

    def slope(self, x: Tensor, time: float, anchor: float) -> Tensor:
        """The field at one time.

        Raises:
            ShapeError: it has not the shape of the state.
        """
        # As the only one of several times, so that inputs are never asked for without a dimension of times.
        leaves = self.weights(torch.tensor([time], dtype=torch.float64, device=x.device), anchor)
        found = self.field.evaluate(x, tuple(leaf[0] for leaf in leaves))
        if found.shape != x.shape:
            raise ShapeError(f"the field turned a state {tuple(x.shape)} into {tuple(found.shape)}; f(t, x) must have the shape of x")
        return found

    def step(self, x: Tensor, slope: Tensor, nodes: Tensor, start: float, length: float, finish: float) -> Step:
        """One step; `nodes` are the pair's, as a tensor."""
        found = [leaf.unbind(0) for leaf in self.weights(nodes * length + start, min(start, finish))]
        stages = list(zip(*found, strict=True))
        # The last two stages of most pairs are at one time.
        stages += stages[-1:] * (len(self.pair.nodes) - len(stages))
        return attempt(self.pair, self.field, x, slope, stages, start, length, finish)

    def nodes(self, x: Tensor) -> Tensor:
        """Times of the stages as fractions of a step, each once."""
        return torch.tensor(list(dict.fromkeys(self.pair.nodes)), dtype=torch.float64, device=x.device)


def walk(problem: Problem, x: Tensor, start: float, end: float, *, controller: Controller, cost: Cost, watch: Watch | None = None) -> Iterator[Step]:
    """Accepted steps from `x` at `start` to `end`, which may be infinite; the last one ends there exactly, and the field sees no time beyond.

    Raises:
        NonFiniteStateError: the slope is NaN or infinite however small the step.
        StepUnderflowError: steps got too small for float64, or too many.
    """
    direction = 1.0 if end >= start else -1.0
    inside = {stop for stop in (*problem.jumps, *problem.corners) if (stop - start) * direction > 0 and (end - stop) * direction > 0}
    stops = sorted(inside, reverse=direction < 0)
    jumps = frozenset(problem.jumps)
    nodes = problem.nodes(x)
    time = start
    slope: Tensor | None = None
    length, before, error = 0.0, 1e-4, 0.0
    resolution = 4 * torch.finfo(torch.float64).eps
    for stop in (*stops, end):
        # Where time decreases, the lower end of the first step is not known yet, but it lies in the piece that reaches to the next stop.
        anchor = time if direction > 0 else stop if math.isfinite(stop) else time - 1.0
        if slope is None or time in jumps:
            slope = problem.slope(x, time, anchor)
            cost.nfe += 1
        if length == 0.0 and stop != time:
            length = _first(problem, controller, x, slope, time, stop, anchor, cost)
        rejected = False
        while time != stop:
            remaining = stop - time
            trial = min(abs(length), controller.largest)
            clipped = trial * 1.01 >= abs(remaining)
            trial = remaining if clipped else math.copysign(trial, direction)
            finish = stop if clipped else time + trial
            if cost.steps + cost.rejected >= controller.max_steps:
                raise _exhausted(controller, time, end, trial)
            if not math.isfinite(finish):
                raise StepUnderflowError(
                    f"time ran from {start:g} to {time:g} without an end; give a finite end time, or an event that happens", time=time
                )
            if not clipped and abs(trial) <= resolution * max(abs(time), abs(finish)):
                raise _underflow(time, trial, cost.steps, finite=math.isfinite(error))
            if watch is not None:
                watch("callback_step", time, x, trial)
            step = problem.step(x, slope, nodes, time, trial, finish)
            cost.nfe += len(problem.pair.nodes)
            error = _error(problem.pair, controller, step)
            accepted = error <= 1.0 or (abs(trial) <= controller.smallest and math.isfinite(error))
            following = abs(controller.next(trial, error, before, problem.pair.order, rejected=rejected))
            if watch is not None:
                watch("callback_accept_step" if accepted else "callback_reject_step", time, x, trial)
            rejected = not accepted
            if rejected:
                cost.rejected += 1
                length = max(following, controller.smallest)
                continue
            cost.steps += 1
            before = max(error, 1e-4)
            # A step cut short by a stop says little about how long the next one may be.
            length = max(following, length, controller.smallest) if clipped else max(following, controller.smallest)
            yield step
            time, x, slope = finish, step.end, step.slopes[-1]


def _error(pair: Pair, controller: Controller, step: Step) -> float:
    """The norm of the error estimate, in units of the tolerance."""
    with torch.no_grad():
        (index, value), *others = pair.estimate
        estimate = step.slopes[index] * (step.length * value)
        for index, value in others:
            estimate = torch.add(estimate, step.slopes[index], alpha=step.length * value)
        error = controller.norm(estimate / controller.scale(torch.maximum(step.x.abs(), step.end.abs())))
    return reveal(error)[0]


def _first(problem: Problem, controller: Controller, x: Tensor, slope: Tensor, time: float, stop: float, anchor: float, cost: Cost) -> float:
    """The first step, from the sizes of the state, its slope and the change of the slope over a small step.

    Source: Hairer, Norsett and Wanner, Solving Ordinary Differential Equations I, II.4.
    """
    if controller.first is not None:
        return controller.first
    with torch.no_grad():
        scale = controller.scale(x.abs())
        size, rate = reveal(controller.norm(x / scale), controller.norm(slope / scale))
        if not math.isfinite(rate):
            state = "the state it starts from" if not math.isfinite(size) else "the slope there"
            raise NonFiniteStateError(f"the integration cannot start at t = {time:.6g}: {state} is NaN or infinite", time=time, step=0)
        probe = 1e-6 if size < 1e-5 or rate < 1e-5 else 0.01 * size / rate
        probe = math.copysign(min(probe, abs(stop - time), controller.largest), stop - time)
        ahead = problem.slope(torch.add(x, slope, alpha=probe), time + probe, min(anchor, time + probe))
        cost.nfe += 1
        bend = reveal(controller.norm((ahead - slope) / scale))[0] / abs(probe)
    largest = max(rate, bend)
    if not math.isfinite(largest):
        return abs(probe) * 1e-3
    guess = max(1e-6, abs(probe) * 1e-3) if largest <= 1e-15 else (0.01 / largest) ** (1.0 / problem.pair.order)
    return max(min(100 * abs(probe), guess), controller.smallest)


def _exhausted(controller: Controller, time: float, end: float, trial: float) -> StepUnderflowError:
    if math.isinf(end):
        return StepUnderflowError(
            f"the event did not happen in max_steps = {controller.max_steps} steps, up to t = {time:.6g}; check that event_fn changes its sign, "
            "or raise options={'max_num_steps': ...}",
            time=time,
        )
    return StepUnderflowError(
        f"max_steps = {controller.max_steps} attempts brought t only to {time:.6g} of {end:.6g}, with steps of {abs(trial):.2g} at the end: "
        "the equation is stiff there, or the tolerance is very small; raise rtol or max_steps, or use a fixed-step method",
        time=time,
    )


def _underflow(time: float, trial: float, steps: int, *, finite: bool) -> Exception:
    if not finite:
        return NonFiniteStateError(
            f"the state becomes NaN or infinite right after t = {time:.6g} (step {steps}), however small the step; "
            "look at what the field returns there",
            time=time,
            step=steps,
        )
    return StepUnderflowError(
        f"at t = {time:.6g} (step {steps}) the error stays above the tolerance even for a step of {abs(trial):.2g}, the least that float64 "
        "resolves there: the solution has a singularity or a jump, or rtol is below the precision of the state; "
        "name jumps (options={'jump_t': ...}), or raise rtol",
        time=time,
        step=steps,
    )
