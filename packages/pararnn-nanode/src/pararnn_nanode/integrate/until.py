"""Walks over a span that an event may end before."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import InputError
from pararnn_nanode.events import Event, crossing, differentiable
from pararnn_nanode.fields.base import Field
from pararnn_nanode.function import Layout
from pararnn_nanode.integrate import adaptive
from pararnn_nanode.integrate.controller import Controller
from pararnn_nanode.integrate.event_walks import adaptive_event
from pararnn_nanode.integrate.fixed import integrate
from pararnn_nanode.integrate.methods import Method
from pararnn_nanode.integrate.reads import Drive
from pararnn_nanode.integrate.schedule import Schedule, through
from pararnn_nanode.integrate.walk import Progress
from pararnn_nanode.solution import Solution

EventFunction = Callable[[Tensor, Tensor], Tensor]


def fixed_until(
    field: Field,
    x: Tensor,
    plan: Schedule,
    event_fn: EventFunction,
    *,
    method: str | Method,
    gradient: str,
    u: Drive = None,
    progress: Progress | None = None,
) -> Solution:
    """The states at the asked times before the event and at the event; at all asked times where it does not happen.

    The steps are those of `plan`, and the one in which the event lies ends there.

    Raises:
        InputError: samples have times of their own.
    """
    field.check_state(x)
    host = _host(plan)
    event = Event(event_fn, Layout(x), plan.knots[0], x)
    everywhere = dataclasses.replace(plan, outputs=tuple(range(plan.steps + 1)), times=plan.knots)
    with torch.no_grad():
        seen = integrate(field, x.detach(), everywhere, method=method, u=u, progress=progress)
    values = [event.value(time, state) for time, state in zip(host, seen.x, strict=True)]
    k = next((k for k, value in enumerate(values) if value <= 0), None)
    if k is None:
        found = integrate(field, x, plan, method=method, gradient=gradient, u=u)
        return dataclasses.replace(found, nfe=found.nfe + seen.nfe)
    before = [j for j in plan.outputs if j < k]
    if k == 0:
        return dataclasses.replace(seen, x=x.unsqueeze(0), t=plan.knots[:1], event=plan.knots[0], gradient=gradient, steps=0)

    held = isinstance(u, Tensor) and u.ndim == x.ndim + 1
    last_u = u[k - 1] if isinstance(u, Tensor) and held else u
    nfe = [seen.nfe]

    def part(start: Tensor, ends: Sequence[float] | Tensor) -> Tensor:
        """The last step, shortened."""
        found = integrate(field, start, through(ends, [1], device=x.device), method=method, u=last_u)
        nfe.append(found.nfe)
        return found.last

    near = seen.x[k - 1]
    with torch.no_grad():
        time, beyond = crossing(lambda at: event.value(at, part(near, [host[k - 1], at])), host[k - 1], host[k], values[k - 1], values[k])
        component = event.first(beyond, seen.x[k] if beyond == host[k] else part(near, [host[k - 1], beyond]))
    states = [x] * (len(before) + 1)
    if k > 1:
        moves = plan.knots.requires_grad or not isinstance(plan.widths, tuple)
        shorter = through(plan.knots[:k] if moves else host[:k], [1] * (k - 1), device=x.device)
        shorter = dataclasses.replace(shorter, outputs=(*before, k - 1), times=plan.knots[[*before, k - 1]])
        walked = integrate(field, x, shorter, method=method, gradient=gradient, u=u[: k - 1] if isinstance(u, Tensor) and held else u)
        nfe.append(walked.nfe)
        states = list(walked.x.unbind(0))
    moment, state = differentiable(event, lambda at: part(states[-1], torch.stack((plan.knots[k - 1], at))), time, x, component)
    return Solution(
        x=torch.stack((*states[:-1], state)),
        t=torch.cat((plan.knots[before], moment.reshape(1))),
        nfe=sum(nfe),
        steps=k,
        method=seen.method,
        gradient=gradient,
        event=moment,
    )


def adaptive_until(
    field: Field,
    x: Tensor,
    plan: Schedule,
    event_fn: EventFunction,
    *,
    method: str,
    gradient: str,
    rtol: float | Tensor = 1e-7,
    atol: float | Tensor = 1e-9,
    max_steps: int = 1_000_000,
    first_step: float | None = None,
) -> Solution:
    """The same with an adaptive method.

    Raises:
        InputError: samples have times of their own, or the asked times turn around.
    """
    field.check_state(x)
    host = _host(plan)
    start, end = host[0], host[-1]
    controller = Controller(rtol=rtol, atol=atol, first=first_step, max_steps=max_steps)
    options: dict[str, Any] = {"method": method, "controller": controller, "gradient": gradient, "parameters": field.outside}
    times = torch.cat((plan.knots[:1], plan.times))

    def first_of_both(t: Tensor, state: Tensor) -> Tensor:
        """The values of the event, and what is left of the span: whichever crosses zero first ends the walk."""
        values = torch.as_tensor(event_fn(t, state)).reshape(-1)
        return torch.cat((values, (end - t).to(values.dtype).reshape(1)))

    found: Solution | None = None
    if start != end:
        event = Event(first_of_both, Layout(x), plan.knots[0], x)
        found = adaptive_event(field, x, torch.stack((plan.knots[0], plan.knots[-1].detach())), event, corners=(end,), **options)
    if found is None or found.event is None or abs(float(found.event.detach()) - end) <= 1e-12 * abs(end - start):
        plain = adaptive.solve(field, x, times, **options)
        return dataclasses.replace(plain, x=plain.x[1:], t=plan.times, nfe=plain.nfe + (found.nfe if found else 0))
    moment = float(found.event.detach())
    asked = [j for j, time in enumerate(plan.times.detach().tolist()) if (time - moment) * (end - start) < 0]
    if not asked:
        return dataclasses.replace(found, x=found.x[1:], t=found.t[1:])
    before = adaptive.solve(field, x, torch.cat((plan.knots[:1], plan.times[asked])), **options)
    return dataclasses.replace(
        found, x=torch.cat((before.x[1:], found.x[1:])), t=torch.cat((plan.times[asked], found.t[1:])), nfe=found.nfe + before.nfe
    )


def _host(plan: Schedule) -> tuple[float, ...]:
    host = plan.host()
    if host is None:
        raise InputError("an event ends all samples at one time, so samples cannot have times of their own; solve them one by one")
    return host
