"""Walks that an event ends."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import ConfigError, InputError
from pararnn.transforms import inside_transform
from pararnn_nanode.errors import StepUnderflowError
from pararnn_nanode.events import Event, Flow, crossing, differentiable
from pararnn_nanode.fields.base import Field
from pararnn_nanode.integrate.adaptive import solve
from pararnn_nanode.integrate.adaptive_adjoint import Backward
from pararnn_nanode.integrate.alone import Alone
from pararnn_nanode.integrate.controller import Controller
from pararnn_nanode.integrate.dense_output import coefficients, combine
from pararnn_nanode.integrate.dopri5 import PAIRS, Pair, Step
from pararnn_nanode.integrate.fixed import integrate
from pararnn_nanode.integrate.pieces import set_back
from pararnn_nanode.integrate.schedule import through
from pararnn_nanode.integrate.steps import Cost, Problem, Watch, walk
from pararnn_nanode.integrate.stretched import readable
from pararnn_nanode.solution import Solution

PARTS = 4
"""An adaptive step is looked at this many places, so that an event function may cross zero twice in one step and be seen."""
LONGEST = 20_000
"""Fixed steps after which an event is no longer waited for."""


def direction(times: Tensor) -> tuple[float, float]:
    """The start of a walk until an event, and 1 or -1 for the way that time goes."""
    rows = readable(times)
    if rows is None or times.ndim != 1:
        raise InputError(
            "an event ends all samples at one time, so t is (start,) or (start, any later or earlier time), not under vmap or for each sample"
        )
    numbers = rows[0]
    if len(numbers) > 2:
        raise InputError(
            f"with an event t is (start,) or (start, any later or earlier time), since the event decides the end; got {len(numbers)} times"
        )
    return numbers[0], -1.0 if numbers[-1] < numbers[0] else 1.0


def adaptive_event(
    field: Field,
    x: Tensor,
    times: Tensor,
    event: Event,
    *,
    method: str,
    controller: Controller,
    gradient: str = "backprop",
    backward: Backward | None = None,
    parameters: Sequence[Tensor] = (),
    corners: Sequence[float] = (),
    watch: Watch | None = None,
) -> Solution:
    """States at the start and at the event of an adaptive walk."""
    start, sign = direction(times)
    cost = Cost()
    if event.value(start, x) == 0.0:
        return _ended(x, x, times[:1], times[0], cost, method, gradient)
    lift = times[0] - times[0].detach() if times.requires_grad or inside_transform() else None
    problem = Problem(pair=PAIRS[method], field=field, lift=lift, jumps=field.edges(), corners=corners)
    direct = gradient == "backprop" or not torch.is_grad_enabled()
    searched = problem if direct else dataclasses.replace(problem, field=Alone(field), lift=None)
    with torch.set_grad_enabled(direct and torch.is_grad_enabled()):
        searched, begin = set_back(searched, x if direct else x.detach(), start, sign * math.inf, cost)
        time, step, component = _search(searched, begin, start, sign * math.inf, event, controller, cost, watch)
    if direct:
        flow = _within(problem.pair, step, searched.lift)
    else:
        end = torch.tensor([time], dtype=torch.float64, device=x.device)
        states = solve(
            field,
            x,
            torch.cat((times[:1], end)),
            method=method,
            controller=controller,
            gradient=gradient,
            backward=backward,
            parameters=parameters,
            corners=corners,
        )
        cost.nfe += states.nfe
        flow = _around(problem.field, states.last, time, torch.tensor(min(step.start, step.finish), dtype=torch.float64, device=x.device))
    moment, state = differentiable(event, flow, time, x, component)
    return _ended(x, state, times[:1], moment, cost, method, gradient)


def _within(pair: Pair, step: Step, lift: Tensor | None) -> Flow:
    """The interpolant of a step."""
    parts = coefficients(pair, step)
    return lambda at: combine(parts, (at - step.start if lift is None else at - lift - step.start) / step.length)


def _around(field: Field, x: Tensor, time: float, anchor: Tensor) -> Flow:
    """The solution through `x` at `time`, right to the second derivative there."""

    def flow(at: Tensor) -> Tensor:
        apart = (at - time).to(x.dtype.to_real())
        slope = field.evaluate(x, field.weights(at, anchor))
        middle = field.evaluate(x + apart / 2 * slope, field.weights((at + time) / 2, anchor))
        return x + apart * middle

    return flow


def _search(
    problem: Problem, x: Tensor, start: float, end: float, event: Event, controller: Controller, cost: Cost, watch: Watch | None
) -> tuple[float, Step, int]:
    """The time of the event, the step that it lies in, and the component of the event function that crosses zero."""
    low, before = event.value(start, x), start
    for step in walk(problem, x, start, end, controller=controller, cost=cost, watch=watch):
        read = _Reader(problem.pair, step)
        for part in range(1, PARTS + 1):
            after = step.finish if part == PARTS else step.start + step.length * part / PARTS
            high = event.value(after, step.end if part == PARTS else read(after))
            if high <= 0.0:
                time, beyond = crossing(lambda time: event.value(time, read(time)), before, after, low, high)  # noqa: B023
                return time, step, event.first(beyond, step.end if beyond == step.finish else read(beyond))
            low, before = high, after
    raise StepUnderflowError(f"the event did not happen between t = {start:g} and {end:g}", time=end)


class _Reader:
    """States within a step, without a graph."""

    def __init__(self, pair: Pair, step: Step) -> None:
        self.step = step
        with torch.no_grad():
            self.parts = coefficients(pair, step)

    def __call__(self, time: float) -> Tensor:
        with torch.no_grad():
            return combine(self.parts, torch.tensor((time - self.step.start) / self.step.length, dtype=torch.float64, device=self.parts.device))


def fixed_event(
    field: Field,
    x: Tensor,
    times: Tensor,
    event: Event,
    *,
    method: Any,
    step_size: float | None,
    gradient: str = "backprop",
    parameters: Sequence[Tensor] | None = None,
) -> Solution:
    """States at the start and at the event of a walk with fixed steps, the last of which is as short as the event makes it."""
    start, sign = direction(times)
    if step_size is None or not 0 < step_size < math.inf:
        raise ConfigError(f"a fixed-step method finds an event with a step size only; pass options={{'step_size': 0.01}}, got {step_size}")
    cost = Cost()
    low = event.value(start, x)
    if low == 0.0:
        return _ended(x, x, times[:1], times[0], cost, str(method), gradient)
    options: dict[str, Any] = {"method": method, "parameters": parameters}
    length = math.copysign(step_size, sign)
    count, k = 32, 0
    states = x.detach().unsqueeze(0)
    high = low
    with torch.no_grad():
        while True:
            # From the start each time: methods that carry more than the state from step to step would notice a break.
            plan = through([start + length * j for j in range(count + 1)], [1] * count, device=x.device)
            found = integrate(Alone(field), x.detach(), plan, **options)
            cost.nfe += found.nfe
            states = found.x
            k = next(
                (j for j in range(max(count // 2 if count > 32 else 1, 1), count + 1) if (event.value(start + length * j, states[j - 1])) <= 0.0), 0
            )
            if k:
                break
            if count >= LONGEST:
                raise StepUnderflowError(
                    f"the event did not happen in {count} steps, up to t = {start + length * count:g}", time=start + length * count
                )
            count *= 2
        knot = start + length * (k - 1)
        near = x.detach() if k == 1 else states[k - 2]
        low, high = event.value(knot, near), event.value(start + length * k, states[k - 1])
        last = start + length * k
        time, beyond = crossing(lambda at: event.value(at, _part(Alone(field), near, [knot, at], options, cost)), knot, last, low, high)
        component = event.first(beyond, states[k - 1] if beyond == last else _part(Alone(field), near, [knot, beyond], options, cost))
    walked = x
    begin = times[0].to(torch.float64)
    if k > 1:
        knots = begin + length * torch.arange(k, dtype=torch.float64, device=x.device)
        moves = times.requires_grad or inside_transform()
        plan = through(knots if moves else [start + length * j for j in range(k)], [1] * (k - 1), device=x.device)
        again = integrate(field, x, dataclasses.replace(plan, outputs=(k - 1,), times=plan.knots[-1:]), gradient=gradient, **options)
        cost.nfe += again.nfe
        walked = again.last
    opened = begin + length * (k - 1)
    moment, state = differentiable(event, lambda at: _part(field, walked, torch.stack((opened, at)), options, cost), time, x, component)
    cost.steps = k
    return _ended(x, state, times[:1], moment, cost, str(method), gradient)


def _part(field: Field, x: Tensor, ends: Sequence[float] | Tensor, options: dict[str, Any], cost: Cost) -> Tensor:
    """One step between two times."""
    found = integrate(field, x, through(ends, [1], device=x.device), **options)
    cost.nfe += found.nfe
    return found.last


def _ended(x: Tensor, state: Tensor, start: Tensor, moment: Tensor, cost: Cost, method: str, gradient: str) -> Solution:
    return Solution(
        x=torch.stack((x, state)),
        t=torch.cat((start, moment.reshape(1))),
        nfe=cost.nfe,
        steps=cost.steps,
        rejected=cost.rejected,
        method=method,
        gradient=gradient,
        event=moment,
    )
