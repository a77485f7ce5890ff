"""The methods of torchdiffeq, kept from what they do wrong in silence."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pararnn.errors import BackendError, ConfigError, DifferentiationError, DTypeError, InputError
from pararnn.transforms import inside_transform
from pararnn_nanode.fields.base import Field
from pararnn_nanode.integrate.adaptive import Progress, as_times, ordered
from pararnn_nanode.integrate.declared import behind
from pararnn_nanode.integrate.driven import Inputs, driven
from pararnn_nanode.integrate.outside import Guarded, not_owned
from pararnn_nanode.integrate.pieces import beside
from pararnn_nanode.solution import Solution

ADAPTIVE = ("dopri8", "dopri5", "bosh3", "fehlberg2", "adaptive_heun")
METHODS = (*ADAPTIVE, "euler", "midpoint", "heun2", "heun3", "rk4", "explicit_adams", "implicit_adams", "fixed_adams", "scipy_solver")
OTHERS = frozenset({"max_order", "max_iters", "implicit", "solver"})
"""Options of its methods that none here has."""


class _Slope(nn.Module):
    """`f(t, x)` for torchdiffeq, counted, and read in the piece that is meant.

    Args:
        numbers: the asked times.
        steps: how the steps of the method are known: "fixed" ones are told before they are taken, "adaptive" ones end at the jumps that it was told;
            "hidden" ones are not known.
        known: tensors with gradients that its adjoint knows of; None where no adjoint is taken.
    """

    def __init__(self, field: Field, numbers: Sequence[float], progress: Progress | None, *, steps: str, known: Sequence[Tensor] | None) -> None:
        super().__init__()
        self.field = field
        self.count = self.steps = 0
        self.edges = field.edges()
        self.start, self.end = numbers[0], numbers[-1]
        self.progress = progress
        self.fixed = steps == "fixed"
        self.guarded = None if known is None else Guarded(field, known)
        self.anchor: float | None = None
        if steps != "hidden":
            self.anchor = beside(self.start, self.end, self.edges)
            setattr(self, "callback_step" if self.fixed else "callback_accept_step", self.tell)
            self.callback_step_adjoint = self.tell_back

    def tell(self, time: Tensor, x: Tensor, length: Tensor) -> None:
        """Count a step that torchdiffeq speaks of, one with fixed steps before it is taken and an adaptive one after."""
        self.steps += 1
        self._hold(time, length, self.end - self.start)
        if self.progress is not None:
            self.progress(self.steps, self.steps + max(0, math.ceil(abs((self.end - float(time.detach())) / float(length.detach()))) - 1))

    def tell_back(self, time: Tensor, x: Tensor, length: Tensor) -> None:
        """The same of a step of the adjoint equation, which goes the other way."""
        # Where time falls, torchdiffeq negates it, and here it does not turn it back.
        self._hold(time if self.end > self.start else -time, length, self.start - self.end)

    def _hold(self, time: Tensor, length: Tensor, way: float) -> None:
        time, length = time.detach().double(), length.detach().double().abs()
        self.anchor = min(float(time), float(time + length if way > 0 else time - length)) if self.fixed else None

    def forward(self, t: Tensor, x: Tensor) -> Tensor:
        self.count += 1
        time = t.to(torch.float64).reshape(1)
        anchor = time
        if self.edges:
            anchor = torch.full_like(time, self._lower(float(t.detach())) if self.anchor is None else self.anchor)
        # Its forward pass under the adjoint runs without a graph, in which nobody would see what is lost.
        field = self.field if self.guarded is None or torch.is_grad_enabled() else self.guarded
        leaves = field.weights(time, anchor)
        return field.evaluate(x, tuple(leaf[0] for leaf in leaves))

    def _lower(self, time: float) -> float:
        """Some time in the piece around `time`, next to which an adaptive method asks just before or just after a jump."""
        piece = bisect_right(self.edges, time)
        if piece == 0:
            return self.edges[0] - 1.0
        low = self.edges[piece - 1]
        return (low + self.edges[piece]) / 2 if piece < len(self.edges) else low + 1e-6


def integrate(
    field: Field,
    x: Tensor,
    times: Sequence[float] | Tensor,
    *,
    method: str = "dopri5",
    rtol: float | Tensor = 1e-7,
    atol: float | Tensor = 1e-9,
    gradient: str = "backprop",
    options: Mapping[str, Any] | None = None,
    u: Inputs | Tensor | None = None,
    parameters: Sequence[Tensor] = (),
    progress: Progress | None = None,
) -> Solution:
    """States at `times` `(times,)`, of which the first is the time of `x`. Jumps of the field are told to adaptive methods.

    Raises:
        BackendError: torchdiffeq is not installed.
        ConfigError: it has no such method or gradient, or no times for each sample.
        DTypeError: half precision, for which its error estimates are wrong.
        DifferentiationError: for `gradient="adjoint"`, where the field reads tensors that would silently get no gradient.
    """
    try:
        import torchdiffeq
    except ImportError as error:
        raise BackendError(f"backend='torchdiffeq' needs torchdiffeq ({error}); pip install 'pararnn-nanode[torchdiffeq]'") from error
    if method not in METHODS:
        raise ConfigError(f"torchdiffeq has no method {method!r}; it has {', '.join(METHODS)}")
    if gradient not in ("backprop", "adjoint"):
        raise ConfigError(f"backend='torchdiffeq' has the gradients backprop and adjoint, got {gradient!r}; leave backend out for others")
    if x.dtype in (torch.float16, torch.bfloat16):
        raise DTypeError(f"torchdiffeq gives wrong results in {x.dtype} without saying so; pass x.float(), or leave backend out")
    named = (*field.outside, *parameters)
    given = as_times(times, x)
    if given.ndim != 1 or given.shape[0] < 2:
        raise InputError(f"backend='torchdiffeq' takes at least two times (times,), the first that of x; got {tuple(given.shape)}")
    if inside_transform():
        raise ConfigError("torchdiffeq does not run inside the transforms of torch.func; leave backend out")
    numbers = list(ordered(given.detach().tolist()))
    # It refuses repeated times: each one is asked for once.
    first = [k for k, time in enumerate(numbers) if k == 0 or time != numbers[k - 1]]
    where = torch.tensor([sum(k <= j for k in first) - 1 for j in range(len(numbers))], device=x.device)
    if len(first) < 2:
        raise InputError(f"all {len(numbers)} times are {numbers[0]:g}; backend='torchdiffeq' needs two different ones")
    field = driven(field, u)
    known: tuple[Tensor, ...] | None = None
    if gradient == "adjoint" and torch.is_grad_enabled():
        inputs = (u,) if isinstance(u, Tensor) and u.requires_grad else ()
        known = (*(parameter for parameter in field.parameters() if parameter.requires_grad), *not_owned(field, *named, *inputs))
        _refuse_dependent(known)
    slope = _Slope(field, numbers, progress, steps=_steps(method), known=known)
    chosen = dict(options or {})
    if method in ADAPTIVE and slope.edges:
        chosen["jump_t"] = torch.tensor(slope.edges, dtype=torch.float64, device=x.device)
    if known is not None:
        states = torchdiffeq.odeint_adjoint(slope, x, given[first], rtol=rtol, atol=atol, method=method, options=chosen, adjoint_params=known)
    else:
        states = torchdiffeq.odeint(slope, x, given[first], rtol=rtol, atol=atol, method=method, options=chosen)
    return Solution(x=states[where], t=given, nfe=slope.count, steps=slope.steps, method=method, gradient=gradient)


def _steps(method: str) -> str:
    return "hidden" if method == "scipy_solver" else "adaptive" if method in ADAPTIVE else "fixed"


def _refuse_dependent(known: Sequence[Tensor]) -> None:
    """Raise `DifferentiationError` where one of `known` was computed from another, which the adjoint of torchdiffeq would count twice."""
    if any(behind(tensor, known) for tensor in known):
        raise DifferentiationError(
            "some of the tensors named as parameters were computed from others of them or from parameters of the field, and the adjoint of "
            "torchdiffeq counts such gradients twice; leave backend out, or use gradient='backprop'"
        )
