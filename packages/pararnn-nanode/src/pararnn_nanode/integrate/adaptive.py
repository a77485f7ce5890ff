"""Integration with steps that the error decides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from pararnn.errors import ConfigError, DTypeError, InputError, ShapeError
from pararnn_nanode.errors import NonFiniteStateError
from pararnn_nanode.fields.base import Field
from pararnn_nanode.integrate.adaptive_adjoint import Backward, adjoint
from pararnn_nanode.integrate.adaptive_checkpoint import checkpointed
from pararnn_nanode.integrate.controller import Controller, mixed, reveal
from pararnn_nanode.integrate.dense_output import collect
from pararnn_nanode.integrate.dopri5 import PAIRS, Step
from pararnn_nanode.integrate.driven import Inputs, driven
from pararnn_nanode.integrate.outside import not_owned
from pararnn_nanode.integrate.pieces import set_back
from pararnn_nanode.integrate.sharing import while_reading
from pararnn_nanode.integrate.steps import Cost, Problem, Watch, walk
from pararnn_nanode.integrate.stretched import Stretched, readable
from pararnn_nanode.integrate.widened import HALVES, widen
from pararnn_nanode.solution import Solution

Gradient: TypeAlias = Literal["backprop", "checkpoint", "adjoint"]
Progress: TypeAlias = Callable[[int, int], None]
GRADIENTS = ("backprop", "checkpoint", "adjoint")


@while_reading
def integrate(
    field: Field,
    x: Tensor,
    times: Sequence[float] | Tensor,
    *,
    method: str = "dopri5",
    rtol: float | Tensor = 1e-7,
    atol: float | Tensor = 1e-9,
    gradient: str = "backprop",
    max_steps: int = 1_000_000,
    first_step: float | None = None,
    u: Inputs | Tensor | None = None,
    parameters: Sequence[Tensor] = (),
    progress: Progress | None = None,
) -> Solution:
    """States at `times`, of which the first is the time of `x`.

    Args:
        times: `(times,)`, or `(samples, times)` where every sample of `x` `(samples, ...)` has its own; they may decrease and repeat, and gradients
            reach them.
        method: a name of `PAIRS`.
        gradient: "backprop" differentiates the accepted steps; "checkpoint" too, with states kept at the square root of their number only;
            "adjoint" integrates the equation of the gradient backwards, which holds to the tolerance and not exactly, and knows no second derivative.
        rtol, atol: a step is accepted where the root mean square of `error / (atol + rtol |x|)` over the whole state is at most 1. The mean goes over
            the batch too: of a thousand samples one may be off by thirty times the tolerance while the others rest.
        u: inputs of the field: `(*batch, ...)` for all times, or a function of float64 times `(n,)` or `(n, samples)` giving `(n, *batch, ...)`.
        parameters: tensors that the field reads and that are not its parameters; `gradient="adjoint"` must know them.
        progress: called after every step with the number of steps and an estimate of their total.

    Raises:
        InputError: times are not finite or not in order.
        NonFiniteStateError, StepUnderflowError: the solution cannot be followed.
    """
    controller = Controller(rtol=rtol, atol=atol, first=first_step, max_steps=max_steps)
    return solve(field, x, times, method=method, controller=controller, gradient=gradient, u=u, parameters=parameters, progress=progress)


def solve(
    field: Field,
    x: Tensor,
    times: Sequence[float] | Tensor,
    *,
    method: str,
    controller: Controller,
    gradient: str = "backprop",
    backward: Backward | None = None,
    u: Inputs | Tensor | None = None,
    parameters: Sequence[Tensor] = (),
    corners: Sequence[float] = (),
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Solution:
    """`integrate` for those who hold a `Controller`; `backward` is how an adjoint is integrated, `corners` are times where steps end."""
    if method not in PAIRS:
        raise ConfigError(f"no adaptive method is called {method!r}; there are {', '.join(PAIRS)}")
    if gradient not in GRADIENTS:
        raise ConfigError(f"{method} has the gradients {', '.join(GRADIENTS)}, got {gradient!r}")
    if not (x.is_floating_point() or x.is_complex()):
        raise DTypeError(f"the state must be floating or complex, got {x.dtype}; pass x.float()")
    parameters = not_owned(field, *parameters)
    if x.dtype in HALVES:
        return widen(
            solve,
            field,
            x,
            times,
            method=method,
            controller=controller,
            gradient=gradient,
            backward=backward,
            u=u.float() if isinstance(u, Tensor) else u,
            parameters=parameters,
            corners=corners,
            progress=progress,
            watch=watch,
        )
    given = as_times(times, x)
    field.check_state(x)
    field = driven(field, u)
    numbers = readable(given)
    lift = moves = None
    differentiable = given.requires_grad or torch._C._functorch.is_functorch_wrapped_tensor(given)
    asked: Sequence[float]
    if given.ndim == 2 or numbers is None or (differentiable and len({*numbers[0]}) == 1 < len(numbers[0])):
        field = Stretched(field, given, numbers)
        asked, jumps, corners = [float(k) for k in range(given.shape[-1])], field.stops, ()
    else:
        asked, jumps = ordered(numbers[0]), field.edges()
        if differentiable:
            lift = given[0] - given[0].detach()
            # At the end of a step the interpolant moves as the field says, inside of one only about so.
            corners = (*corners, *asked)
    problem = Problem(pair=PAIRS[method], field=field, lift=lift, jumps=jumps, corners=corners)
    cost = Cost()
    if gradient == "adjoint" and torch.is_grad_enabled():
        backward = backward or Backward(controller=controller, method=method, norm=mixed)
        states = adjoint(problem, x, asked, given, controller=controller, cost=cost, backward=backward, outside=parameters, watch=watch)
    else:
        problem, start = set_back(problem, x, asked[0], asked[-1], cost)
        if lift is not None:
            moves = given - given.detach() - (0.0 if problem.lift is None else lift)
        if gradient == "checkpoint" and torch.is_grad_enabled():
            states = checkpointed(problem, start, asked, moves, controller=controller, cost=cost, watch=watch)
        else:
            steps = walk(problem, start, asked[0], asked[-1], controller=controller, cost=cost, watch=watch)
            states = collect(problem.pair, steps if progress is None else told(steps, progress, asked), start, asked, moves)
        if start is not x:
            states = torch.cat((x.unsqueeze(0), states[1:]))
    (broken,) = reveal((~torch.isfinite(states.detach())).any().double())
    if broken:
        raise NonFiniteStateError(
            f"the state becomes NaN or infinite between t = {asked[0]:.6g} and {asked[-1]:.6g}", time=asked[-1], step=cost.steps
        )
    return Solution(x=states, t=given, nfe=cost.nfe, steps=cost.steps, rejected=cost.rejected, method=method, gradient=gradient)


def as_times(times: Sequence[float] | Tensor, x: Tensor) -> Tensor:
    """Times in float64 on the device of `x`, of the right shape for it."""
    given = times if isinstance(times, Tensor) else torch.tensor(times.tolist() if hasattr(times, "tolist") else list(times), dtype=torch.float64)
    if given.is_complex() or given.dtype == torch.bool:
        raise InputError(f"times are real numbers, got {given.dtype}")
    if given.ndim not in (1, 2) or given.shape[-1] == 0 or (given.ndim == 2 and given.shape[:1] != x.shape[:1]):
        raise ShapeError(f"times are (times,), or (samples, times) for a state (samples, ...); got {tuple(given.shape)} for a state {tuple(x.shape)}")
    return given.to(x.device, torch.float64)


def ordered(times: Sequence[float]) -> Sequence[float]:
    """`times`, if they only rise or only fall.

    Raises:
        InputError: they turn around.
    """
    for sign in (1.0, -1.0):
        if all((late - early) * sign >= 0 for early, late in itertools.pairwise(times)):
            return times
    turn = next(k for k in range(1, len(times) - 1) if (times[k] - times[0]) * (times[k + 1] - times[k]) < 0)
    raise InputError(
        f"times must rise or fall all along, but they turn around at index {turn} ({times[turn - 1]:g}, {times[turn]:g}, {times[turn + 1]:g})"
    )


def told(steps: Iterable[Step], progress: Progress, times: Sequence[float]) -> Iterator[Step]:
    """The steps, with a call of `progress` after each."""
    for done, step in enumerate(steps, start=1):
        progress(done, done + math.ceil(abs((times[-1] - step.finish) / step.length)))
        yield step
