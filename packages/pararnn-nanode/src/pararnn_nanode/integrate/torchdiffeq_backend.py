"""The methods of torchdiffeq, kept from what they do wrong in silence."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pararnn.errors import BackendError, ConfigError, DTypeError, InputError
from pararnn.transforms import inside_transform
from pararnn_nanode.fields.base import Field
from pararnn_nanode.integrate.adaptive import Progress, as_times, ordered
from pararnn_nanode.integrate.dopri5 import DOPRI5
from pararnn_nanode.integrate.outside import not_owned, refuse_outsiders
from pararnn_nanode.integrate.steps import Inputs, Problem
from pararnn_nanode.solution import Solution

ADAPTIVE = ("dopri8", "dopri5", "bosh3", "fehlberg2", "adaptive_heun")
METHODS = (*ADAPTIVE, "euler", "midpoint", "heun2", "heun3", "rk4", "explicit_adams", "implicit_adams", "fixed_adams", "scipy_solver")
OTHERS = frozenset({"max_order", "max_iters", "implicit", "solver"})
"""Options of its methods that none here has."""


class _Slope(nn.Module):
    """`f(t, x)` for torchdiffeq, counted."""

    def __init__(self, field: Field, inputs: Inputs | None, end: float, progress: Progress | None) -> None:
        super().__init__()
        self.field = field
        self.inputs = inputs
        self.count = self.steps = 0
        self.edges = field.edges()
        self.end = end
        self.progress = progress

    def tell(self, time: Tensor, x: Tensor, length: Tensor) -> None:
        """Count a step that torchdiffeq speaks of."""
        self.steps += 1
        if self.progress is not None:
            self.progress(self.steps, self.steps + max(0, math.ceil(abs((self.end - float(time.detach())) / float(length.detach()))) - 1))

    def forward(self, t: Tensor, x: Tensor) -> Tensor:
        self.count += 1
        time = t.to(torch.float64)
        anchor = time
        if self.edges:
            # Next to a jump torchdiffeq asks just before or just after it; weights are looked up in the middle of the piece that is meant.
            piece = bisect_right(self.edges, float(t.detach()))
            low = self.edges[piece - 1] if piece else self.edges[0] - 1.0
            high = self.edges[piece] if piece < len(self.edges) else self.edges[-1] + 1e-6
            anchor = torch.full_like(time, (low + high) / 2 if piece < len(self.edges) else low + 1e-6)
        return self.field.evaluate(x, self.field.weights(time, anchor, None if self.inputs is None else self.inputs(time)))


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
    given = as_times(times, x)
    if given.ndim != 1 or given.shape[0] < 2:
        raise InputError(f"backend='torchdiffeq' takes at least two times (times,), the first that of x; got {tuple(given.shape)}")
    if inside_transform():
        raise ConfigError("torchdiffeq does not run inside the transforms of torch.func; leave backend out")
    numbers = list(ordered(given.detach().tolist()))
    # It refuses repeated times: each one is asked for once.
    first = [k for k, time in enumerate(numbers) if k == 0 or time != numbers[k - 1]]
    where = torch.tensor([sum(k <= j for k in first) - 1 for j in range(len(numbers))], device=x.device)
    inputs = (lambda at: u.expand(*at.shape, *u.shape)) if isinstance(u, Tensor) else u
    slope = _Slope(field, inputs, numbers[-1], progress)
    setattr(slope, "callback_accept_step" if method in ADAPTIVE else "callback_step", slope.tell)
    if len(first) < 2:
        raise InputError(f"all {len(numbers)} times are {numbers[0]:g}; backend='torchdiffeq' needs two different ones")
    chosen = dict(options or {})
    if method in ADAPTIVE and slope.edges:
        chosen["jump_t"] = torch.tensor(slope.edges, dtype=torch.float64, device=x.device)
    if gradient == "adjoint" and torch.is_grad_enabled():
        named = [parameter for parameter in field.parameters() if parameter.requires_grad]
        known = (*named, *not_owned(field, *parameters, *((u,) if isinstance(u, Tensor) and u.requires_grad else ())))
        refuse_outsiders(Problem(pair=DOPRI5, field=field, inputs=inputs), x, numbers, known)
        states = torchdiffeq.odeint_adjoint(slope, x, given[first], rtol=rtol, atol=atol, method=method, options=chosen, adjoint_params=known)
    else:
        states = torchdiffeq.odeint(slope, x, given[first], rtol=rtol, atol=atol, method=method, options=chosen)
    return Solution(x=states[where], t=given, nfe=slope.count, steps=slope.steps, method=method, gradient=gradient)
