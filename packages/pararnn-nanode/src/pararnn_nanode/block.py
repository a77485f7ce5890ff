"""The block: a field, the steps through time, and how their gradient is had."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError
from pararnn_nanode import choices
from pararnn_nanode.fields.base import Field
from pararnn_nanode.fields.callable import CallableField
from pararnn_nanode.integrate import fixed, torchdiffeq_backend
from pararnn_nanode.integrate.catalogue import find
from pararnn_nanode.integrate.methods import Method
from pararnn_nanode.integrate.reads import Drive
from pararnn_nanode.integrate.schedule import Output, Schedule, Times, schedule
from pararnn_nanode.integrate.until import EventFunction, adaptive_until, fixed_until
from pararnn_nanode.integrate.walk import Progress
from pararnn_nanode.paths.base import Span
from pararnn_nanode.solution import Solution

_GIVEN = ("method", "gradient", "u", "progress", "parameters", "parallel", "window")


class NANODE(nn.Module):
    """A neural ODE block, `dx/dt = f(t, x)` from the start of the span on, where the weights of `f` may be functions of time.

    Args:
        field: the right-hand side; a function or module `fn(t, x)` becomes a `CallableField`.
        steps: equal steps over the span. An adaptive method chooses its own.
        span: times of the first state and of the last; it may run backwards.
        method: "euler", "midpoint", "heun", "rk4", "rk4_38", "reversible_heun", "alf" or a `Method`; "dopri5" and other
            adaptive ones choose their steps by `rtol` and `atol`.
        gradient: "backprop" keeps all steps; "checkpoint" their square root; "reversible" none (`reversible_heun`, `alf`): all three give the
            derivative of what was computed. "adjoint" integrates the continuous adjoint equation, and is off by the error of the method.
        parallel: None walks step by step. "newton", "picard" and "windowed" solve all steps at once (or `window` at a time), to the same states;
            "auto" does where it pays, which it never does for ten steps.
        backend: "native", or "torchdiffeq" for the methods of that library (`pip install 'pararnn-nanode[torchdiffeq]'`).
        output: "last" state, "path" through every step, or times: what a call without times gives. The path of a method that chooses its steps is
            read at the ends of `steps` equal ones.
        options: further options of the integrator that was chosen, such as `rtol`, `atol` and `max_steps` of "dopri5".

    Raises:
        ConfigError: options that do not go together, with the ones that do.

    Warns `PathWarning` of paths with more matrices than the steps can tell apart, and of reads outside the span of a path.

    Source: Davis et al., "Time dependence in non-autonomous neural ODEs" (2020), arXiv 2005.01906.
    """

    def __init__(
        self,
        field: Field | nn.Module | Callable[..., Tensor],
        steps: int = 10,
        span: Span = (0.0, 1.0),
        method: str | Method = "euler",
        gradient: str = "backprop",
        *,
        parallel: str | None = None,
        window: int | None = None,
        backend: str = "native",
        output: Output = "last",
        **options: Any,
    ) -> None:
        super().__init__()
        self.field = field if isinstance(field, Field) else CallableField(field)
        self.span = choices.span_of(span)
        self.steps = steps
        self.method = method
        self.gradient = gradient
        self.parallel = parallel
        self.window = window
        self.backend = backend
        self.output = output
        self.options = options
        self.kind = choices.kind_of(method, backend)
        choices.check_gradient(gradient, method, self.kind)
        choices.check_parallel(parallel, window, self.field, method, gradient, self.kind)
        what = f"parallel={parallel!r}" if parallel else f"method={method!r}"
        choices.check_options(options, self._integrate(), frozenset(_GIVEN), what, kind=self.kind)
        schedule(steps=steps, span=self.span, output=output)
        choices.warn_of_paths(self.field, find(method) if self.kind == "fixed" else None, steps=steps, span=self.span)

    def forward(self, x: Tensor, t: Times | None = None, u: Drive = None, *, progress: Progress | None = None) -> Tensor:
        """The state `(*batch, ...)` at the end of the span, or at `t` where it is one number; at several times, `(times, *batch, ...)`.

        Args:
            x: the state `(*batch, ...)` at the start of the span.
            t: one end time; times `(times,)`, which may decrease and repeat; or `(samples, times)`, where every sample has its own, `(samples, 1)`
                for an end of its own. Left out, `output` decides. Gradients reach a tensor `t`.
            u: inputs: `(*batch, ...)` for all times, `(steps, *batch, ...)` held for each step, or a function of times.
            progress: called with the number of steps done and of all steps after each step.

        Raises:
            NonFiniteStateError: the state left the finite numbers, with the time and the step.
        """
        states = self.solve(x, t, u, progress=progress).x
        return states[-1] if self._ends(t) else states

    def solve(
        self, x: Tensor, t: Times | None = None, u: Drive = None, *, event: EventFunction | None = None, progress: Progress | None = None
    ) -> Solution:
        """States, times and what they cost; arguments as in `forward`.

        Args:
            event: a function of `(t, x)`; where its value, or the first of its values, crosses zero, the integration ends: the last state is that of
                the event, `event` of the solution its time, and both have gradients. Without a crossing in the span nothing changes.
        """
        plan = schedule(t, steps=self.steps, span=self.span, output=self.output, device=x.device)
        choices.warn_of_times(self.field, plan, span=self.span)
        if event is not None:
            return self._until(x, plan, event, u, progress)
        if self.kind == "torchdiffeq":
            return self._by_torchdiffeq(x, plan, u, progress)
        if self.kind == "adaptive":
            return self._at_chosen_times(x, plan, u, progress)
        if self.parallel is None:
            return fixed.integrate(self.field, x, plan, method=self.method, gradient=self.gradient, u=u, progress=progress, **self.options)
        if progress is not None:
            raise ConfigError(f"progress counts steps one after another, but parallel={self.parallel!r} takes them at once; leave progress out")
        self.field.check_state(x)
        return self._integrate()(self.field, x, plan, method=self.method, parallel=self.parallel, window=self.window, u=u, **self.options)

    def _until(self, x: Tensor, plan: Schedule, event: EventFunction, u: Drive, progress: Progress | None) -> Solution:
        if self.kind == "torchdiffeq" or self.parallel is not None:
            raise ConfigError("an event ends a walk of backend='native' with parallel=None; make such a block, or use odeint_event")
        if self.kind == "fixed":
            return fixed_until(self.field, x, plan, event, method=self.method, gradient=self.gradient, u=u, progress=progress)
        if u is not None or progress is not None:
            raise ConfigError(f"{self.method} with an event takes neither inputs u nor progress; a fixed-step method takes both")
        return adaptive_until(self.field, x, plan, event, method=str(self.method), gradient=self.gradient, **self.options)

    def _at_chosen_times(self, x: Tensor, plan: Schedule, u: Drive, progress: Progress | None) -> Solution:
        """The solution of a method that chooses its own steps."""
        given = {"method": self.method, "gradient": self.gradient, "parameters": self.field.outside}
        times = torch.cat((torch.full_like(plan.times[..., :1], self.span[0]), plan.times), dim=-1)
        found = self._integrate()(self.field, x, times, u=u, progress=progress, **given, **self.options)
        return dataclasses.replace(found, x=found.x[1:], t=plan.times)

    def _by_torchdiffeq(self, x: Tensor, plan: Schedule, u: Drive, progress: Progress | None) -> Solution:
        """The solution of a method of torchdiffeq; one with fixed steps takes those of a walk, since it steps from each time to the next."""
        if u is not None or progress is not None:
            raise ConfigError("backend='torchdiffeq' takes neither inputs u nor progress; leave them out, or leave backend out")
        self.field.check_state(x)
        given = {"method": self.method, "gradient": self.gradient, "parameters": self.field.outside}
        if self.method in torchdiffeq_backend.ADAPTIVE or not plan.shared:
            times = torch.cat((torch.full_like(plan.times[..., :1], self.span[0]), plan.times), dim=-1)
            outputs = list(range(1, times.shape[-1]))
        else:
            times, outputs = plan.knots, list(plan.outputs)
        found = self._integrate()(self.field, x, times, **given, **self.options)
        return dataclasses.replace(found, x=found.x[outputs], t=plan.times)

    def _ends(self, t: Times | None) -> bool:
        """Whether a call with `t` asks for one state, rather than for states along times."""
        if t is None:
            return isinstance(self.output, str) and self.output == "last"
        one = isinstance(t, int | float) or getattr(t, "ndim", 1) == 0
        return one and not (isinstance(self.output, str) and self.output == "path")

    def _integrate(self) -> Callable[..., Solution]:
        """The integrator of this block; the others need not be importable."""
        home = {"adaptive": "integrate.adaptive", "torchdiffeq": "integrate.torchdiffeq_backend", "fixed": "integrate.fixed"}[self.kind]
        module = importlib.import_module(f"pararnn_nanode.{'depth.solve' if self.parallel else home}")
        integrate: Callable[..., Solution] = module.integrate
        return integrate

    def extra_repr(self) -> str:
        """All options that differ from what is left out most."""
        shown = {"steps": self.steps, "span": self.span, "method": self.method, "gradient": self.gradient}
        more = {"parallel": self.parallel, "window": self.window, **self.options}
        if self.backend != "native":
            more["backend"] = self.backend
        shown |= {name: value for name, value in more.items() if value is not None}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())
