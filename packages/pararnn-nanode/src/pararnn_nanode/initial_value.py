"""From the arguments of `odeint` to a solution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import ConfigError, DTypeError, InputError
from pararnn_nanode.events import Event
from pararnn_nanode.function import FunctionField, Layout, State
from pararnn_nanode.integrate import torchdiffeq_backend
from pararnn_nanode.integrate.adaptive import as_times, solve
from pararnn_nanode.integrate.adaptive_adjoint import Backward
from pararnn_nanode.integrate.catalogue import METHODS
from pararnn_nanode.integrate.controller import Controller, mixed
from pararnn_nanode.integrate.dopri5 import PAIRS
from pararnn_nanode.integrate.event_walks import LONGEST, adaptive_event, fixed_event
from pararnn_nanode.integrate.fixed_grid import on_grid
from pararnn_nanode.integrate.runge_kutta import RungeKutta
from pararnn_nanode.options import ADAPTIVE, FIXED, check, controller, norm_of, numbers, tolerance
from pararnn_nanode.solution import Solution

HEUN3 = RungeKutta(
    name="heun3", order=3, nodes=(0.0, 1 / 3, 2 / 3), stages=((1 / 3,), (0.0, 2 / 3)), combination=(1 / 4, 0.0, 3 / 4), reads=(0, 1, 2)
)
NAMES: dict[str, Any] = {"heun2": "heun", "heun3": HEUN3, "rk4": "rk4_38", "rk4_classical": "rk4"}
"""Methods of torchdiffeq whose name here is another."""


@dataclass(frozen=True, kw_only=True)
class InitialValue:
    """The arguments of `odeint` and `odeint_adjoint`."""

    func: Callable[[Tensor, Any], Any]
    y0: State
    t: Any
    rtol: Any = 1e-7
    atol: Any = 1e-9
    method: str | None = None
    options: Mapping[str, Any] | None = None
    event_fn: Callable[[Tensor, Any], Any] | None = None
    gradient: str = "backprop"
    parameters: Sequence[Tensor] = ()
    backend: str = "native"
    adjoint_rtol: Any = None
    adjoint_atol: Any = None
    adjoint_method: str | None = None
    adjoint_options: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """The method."""
        return self.method or "dopri5"


def solved(problem: InitialValue) -> tuple[Layout, Solution]:
    """The layout of the state and the solution in it."""
    layout = Layout(problem.y0)
    x = layout.join(problem.y0)
    if not (x.is_floating_point() or x.is_complex()):
        raise DTypeError(f"y0 must be floating or complex, got {x.dtype}; pass y0.float()")
    times = as_times(problem.t, x)
    if problem.event_fn is None and times.shape[-1] < 2:
        raise InputError(
            "t holds a single time, which is the time of y0, so the solution would be y0 itself; pass the start and the end, such as t=[0., 1.]"
        )
    if problem.backend == "torchdiffeq":
        return layout, _by_torchdiffeq(problem, layout, x, times)
    if problem.backend != "native":
        raise ConfigError(f"backend must be 'native' or 'torchdiffeq', got {problem.backend!r}")
    if problem.name in PAIRS:
        return layout, _adaptive(problem, layout, x, times)
    method = NAMES.get(problem.name, problem.name)
    if isinstance(method, str) and method not in METHODS:
        known = ", ".join(sorted({*PAIRS, *NAMES, *METHODS}))
        other = problem.name in torchdiffeq_backend.METHODS
        raise ConfigError(
            f"no method is called {problem.name!r}; there are {known}"
            + (f"; torchdiffeq has {problem.name!r}: pass backend='torchdiffeq'" if other else "")
        )
    return layout, _fixed(problem, layout, x, times, method)


def _adaptive(problem: InitialValue, layout: Layout, x: Tensor, times: Tensor) -> Solution:
    options = dict(problem.options or {})
    if problem.event_fn is not None:
        # A walk without an end must not wait for ever for an event that never happens.
        options.setdefault("max_num_steps", LONGEST)
    norm = norm_of(options, layout)
    rtol, atol = tolerance("rtol", problem.rtol, layout, x), tolerance("atol", problem.atol, layout, x)
    control = controller(options, problem.name, rtol, atol, norm)
    jumps = numbers(options.get("jump_t"))
    half = x.dtype in (torch.float16, torch.bfloat16)
    field = FunctionField(problem.func, layout, torch.float32 if half else x.dtype, parameters=problem.parameters, edges=jumps, nudge=bool(jumps))
    arguments: dict[str, Any] = {
        "method": problem.name,
        "controller": control,
        "gradient": problem.gradient,
        "backward": _backward(problem, layout, x, control, options) if problem.gradient == "adjoint" else None,
        "corners": numbers(options.get("step_t")),
        "watch": _watch(problem.func, layout, times),
    }
    if problem.event_fn is None:
        return solve(field, x, times, progress=options.get("progress"), **arguments)
    if half:
        raise DTypeError(f"an event cannot be found in {x.dtype}; pass y0.float()")
    return adaptive_event(field, x, times, Event(problem.event_fn, layout, times[0], x), **arguments)


def _fixed(problem: InitialValue, layout: Layout, x: Tensor, times: Tensor, method: Any) -> Solution:
    options = dict(problem.options or {})
    check(options, FIXED, problem.name)
    if problem.adjoint_method not in (None, problem.method) or problem.adjoint_options:
        raise ConfigError(f"the adjoint of {problem.name} runs with the same method and steps; leave adjoint_method and adjoint_options out")
    if any(getattr(problem.func, name, None) is not None for name in CALLBACKS):
        raise ConfigError(f"{problem.name} calls no callback_step; pass options={{'progress': function(step, steps)}}, or use an adaptive method")
    field = FunctionField(problem.func, layout, x.dtype, parameters=problem.parameters, nudge=bool(options.get("perturb")))
    step_size = options.get("step_size")
    step_size = None if step_size is None else float(step_size)
    if problem.event_fn is not None:
        event = Event(problem.event_fn, layout, times[0], x)
        return fixed_event(field, x, times, event, method=method, step_size=step_size, gradient=problem.gradient)
    constructor = options.get("grid_constructor")

    def grid(at: Tensor) -> Any:
        given = problem.t if isinstance(problem.t, Tensor) else at
        return constructor(problem.func, problem.y0, given)  # type: ignore[misc]

    return on_grid(
        field,
        x,
        times,
        method=method,
        gradient=problem.gradient,
        grid=None if constructor is None else grid,
        step_size=step_size,
        interpolation=options.get("interp", "linear"),
        progress=options.get("progress"),
    )


def _backward(problem: InitialValue, layout: Layout, x: Tensor, control: Controller, options: dict[str, Any]) -> Backward:
    """How the adjoint equation is integrated: as the equation is, where nothing else is said."""
    method = problem.adjoint_method or problem.name
    if method not in PAIRS:
        raise ConfigError(f"adjoint_method must be one of {', '.join(PAIRS)}, got {method!r}")
    own = dict(problem.adjoint_options) if problem.adjoint_options is not None else {key: value for key, value in options.items() if key != "norm"}
    given = own.pop("norm", None)
    for name in ("jump_t", "step_t", "progress"):
        own.pop(name, None)
    rtol = problem.rtol if problem.adjoint_rtol is None else problem.adjoint_rtol
    atol = problem.atol if problem.adjoint_atol is None else problem.adjoint_atol
    if not all(isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.ndim == 0) for value in (rtol, atol)):
        raise ConfigError("the adjoint equation needs tolerances that are numbers; pass adjoint_rtol and adjoint_atol")
    state = control.norm

    def norm(parts: tuple[Tensor, ...]) -> Tensor:
        _, y, adjoint, *others = parts
        if callable(given):
            split = (*_tuple(layout.split(y)), *_tuple(layout.split(adjoint)))
            return torch.as_tensor(given((parts[0], *split, *others)))
        sizes = [state(y).double(), state(adjoint).double()]
        return torch.stack([*sizes, mixed(others)] if others and given != "seminorm" else sizes).amax()

    return Backward(controller=controller(own, method, float(rtol), float(atol), mixed_flat), method=method, norm=norm)


def mixed_flat(x: Tensor) -> Tensor:
    """A norm that stands in for the adjoint's own."""
    return mixed((x,))


def _tuple(state: State) -> tuple[Tensor, ...]:
    return (state,) if isinstance(state, Tensor) else state


CALLBACKS = ("callback_step", "callback_accept_step", "callback_reject_step")


def _watch(func: Any, layout: Layout, times: Tensor) -> Callable[[str, float, Tensor, float], None] | None:
    """Calls the methods `callback_step(t0, y0, dt)`, `callback_accept_step` and `callback_reject_step` that `func` has."""
    found = {name: getattr(func, name) for name in CALLBACKS if callable(getattr(func, name, None))}
    if not found:
        return None

    def watch(name: str, time: float, x: Tensor, length: float) -> None:
        if name in found:
            found[name](times.new_tensor(time), layout.split(x), times.new_tensor(length))

    return watch


def _by_torchdiffeq(problem: InitialValue, layout: Layout, x: Tensor, times: Tensor) -> Solution:
    options = dict(problem.options or {})
    if problem.event_fn is not None:
        raise ConfigError("events are found by backend='native' only; leave backend out")
    field = FunctionField(problem.func, layout, x.dtype, parameters=problem.parameters, edges=numbers(options.pop("jump_t", None)))
    check(options, ADAPTIVE | FIXED | torchdiffeq_backend.OTHERS, problem.name)
    return torchdiffeq_backend.integrate(
        field,
        x,
        times,
        method=problem.name,
        rtol=tolerance("rtol", problem.rtol, layout, x),
        atol=tolerance("atol", problem.atol, layout, x),
        gradient=problem.gradient,
        options=options | ({} if layout.single else {"norm": norm_of(options, layout)}),
        parameters=problem.parameters,
    )
