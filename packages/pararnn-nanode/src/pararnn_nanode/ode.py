"""`odeint` and its relatives, with the arguments, names and results of torchdiffeq."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import InputError
from pararnn_nanode.function import State
from pararnn_nanode.initial_value import InitialValue, solved
from pararnn_nanode.solution import Solution

Function = Callable[[Tensor, Any], Any]
Options = Mapping[str, Any]


def odeint(
    func: Function,
    y0: State,
    t: Tensor | Sequence[float],
    *,
    rtol: Any = 1e-7,
    atol: Any = 1e-9,
    method: str | None = None,
    options: Options | None = None,
    event_fn: Function | None = None,
    gradient: str = "backprop",
    parameters: Sequence[Tensor] = (),
    backend: str = "native",
) -> Any:
    """The solution of `dy/dt = func(t, y)`, `y(t[0]) = y0`, at the times `t`: `(times, *y0.shape)`, or a tuple of such where `y0` is one.

    Arguments, names of methods and shapes are those of torchdiffeq, and so are the numbers: those of fixed-step methods to rounding, those of
    adaptive ones to the tolerance. Where `t` is less precise than `y0`, torchdiffeq computes its steps in the precision of `t`, a difference of up
    to 1e-7 for a float32 `t` and a float64 `y0`; here times are float64. Beyond it, times can repeat and can be `(samples, times)`, gradients are
    those of the steps that were taken, and what cannot be answered rightly is an error.

    Args:
        func: gets the time without dimensions, in the dtype of `y0`, and the state.
        t: rises or falls; the first is the time of `y0`. Gradients reach it.
        rtol, atol: tolerances of adaptive methods; for a tuple `y0` a tuple may be given, for a tensor a tensor that broadcasts to it. They hold for
            the root mean square over the whole state, the batch included; the option "norm" says otherwise.
        method: "dopri5" (where left out), "bosh3", "fehlberg2", "adaptive_heun"; "euler", "midpoint", "heun2", "heun3", "rk4" (the 3/8 rule, as in
            torchdiffeq; "rk4_classical" is the other one), and the methods of `NANODE`. Others of torchdiffeq need `backend="torchdiffeq"`.
        options: of adaptive methods "first_step", "min_step", "max_step", "step_t", "jump_t", "safety", "ifactor", "dfactor", "max_num_steps",
            "norm";
            of fixed-step ones "step_size", "grid_constructor", "interp", "perturb"; of both "progress", called with steps done and expected.
        event_fn: the integration ends where `event_fn(t, y)`, or the first of its values, crosses zero; of `t` the first is the start, and the second
            says in which direction time goes. Fixed-step methods need "step_size". Gives `(event_t, solution)` with `solution` at start and event;
            both depend on everything with first and second derivatives, for which `event_fn` needs a derivative by time or state.
        gradient: "backprop", "checkpoint" (states of few steps are kept), "reversible" (none are; methods "reversible_heun" and "alf"), "adjoint".
        parameters: tensors that `func` reads without being a module that owns them; only "reversible" and "adjoint" must know.
        backend: "native" or "torchdiffeq".

    Raises:
        ConfigError: a method, option or value that does not exist or cannot work.
        InputError: `t` is a single time, not finite, or turns around.
        NonFiniteStateError, StepUnderflowError: the solution cannot be followed.
    """
    problem = InitialValue(
        func=func,
        y0=y0,
        t=t,
        rtol=rtol,
        atol=atol,
        method=method,
        options=options,
        event_fn=event_fn,
        gradient=gradient,
        parameters=parameters,
        backend=backend,
    )
    layout, solution = solved(problem)
    states = layout.split(solution.x, lead=1)
    if event_fn is None:
        return states
    return _moment(solution, t), states


def odeint_solution(func: Function, y0: State, t: Tensor | Sequence[float], **arguments: Any) -> Solution:
    """What `odeint` finds with the same arguments and what it cost; the tensors of a tuple `y0` are joined to `(times, elements)`."""
    problem = InitialValue(func=func, y0=y0, t=t, **arguments)
    return solved(problem)[1]


def odeint_adjoint(
    func: Function,
    y0: State,
    t: Tensor | Sequence[float],
    *,
    rtol: Any = 1e-7,
    atol: Any = 1e-9,
    method: str | None = None,
    options: Options | None = None,
    event_fn: Function | None = None,
    adjoint_rtol: Any = None,
    adjoint_atol: Any = None,
    adjoint_method: str | None = None,
    adjoint_options: Options | None = None,
    adjoint_params: Iterable[Tensor] | None = None,
    backend: str = "native",
) -> Any:
    """`odeint` with the gradient of the continuous adjoint, which keeps the asked states only.

    That gradient belongs to the equation and not to the steps taken: it is as exact as the tolerance for adaptive methods, and for coarse fixed
    steps it is not the gradient of the loss. `odeint(..., gradient="checkpoint")` and `gradient="reversible"` save memory and are exact.

    Args:
        adjoint_rtol, adjoint_atol, adjoint_method, adjoint_options: of the adjoint equation; those of the equation where left out. The option "norm"
            may be "seminorm", or a function of `(time, state, adjoint, *gradients)`.
        adjoint_params: all tensors that gradients are wanted for, as in torchdiffeq; where left out, the parameters of the module `func`. One may
            have been computed from another (not with `backend="torchdiffeq"`).

    Raises:
        DifferentiationError: `func` reads tensors that require grad and are not named, or a second derivative is asked for.
    """
    problem = InitialValue(
        func=func,
        y0=y0,
        t=t,
        rtol=rtol,
        atol=atol,
        method=method,
        options=options,
        event_fn=event_fn,
        gradient="adjoint",
        parameters=() if adjoint_params is None else tuple(adjoint_params),
        backend=backend,
        adjoint_rtol=adjoint_rtol,
        adjoint_atol=adjoint_atol,
        adjoint_method=adjoint_method,
        adjoint_options=adjoint_options,
    )
    layout, solution = solved(problem)
    states = layout.split(solution.x, lead=1)
    return states if event_fn is None else (_moment(solution, t), states)


def odeint_event(
    func: Function,
    y0: State,
    t0: Tensor | float,
    *,
    event_fn: Function,
    reverse_time: bool = False,
    odeint_interface: Callable[..., Any] = odeint,
    **arguments: Any,
) -> Any:
    """`(event_t, solution)` of an integration from `t0` until `event_fn` crosses zero.

    Args:
        reverse_time: go back in time.
        odeint_interface: `odeint`, `odeint_adjoint`, or a function that calls one of them; other arguments go to it.
    """
    start = torch.as_tensor(t0)
    if start.numel() != 1:
        raise InputError(f"t0 is one time, got a tensor {tuple(start.shape)}")
    start = start.reshape(1) if start.is_floating_point() else start.reshape(1).double()
    t = torch.cat((start, start.detach() + (-1.0 if reverse_time else 1.0)))
    return odeint_interface(func, y0, t, event_fn=event_fn, **arguments)


def _moment(solution: Solution, t: Tensor | Sequence[float]) -> Tensor | None:
    """The time of the event, in the dtype of the times."""
    event = solution.event
    return event.to(t.dtype) if event is not None and isinstance(t, Tensor) and t.is_floating_point() else event
