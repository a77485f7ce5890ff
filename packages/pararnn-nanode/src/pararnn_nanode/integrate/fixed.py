"""Integration with fixed steps: any method, any way to its gradient."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from torch import Tensor

from pararnn.errors import ConfigError, DTypeError, ShapeError
from pararnn_nanode.fields.base import Field
from pararnn_nanode.integrate.adjoint import adjoint
from pararnn_nanode.integrate.catalogue import find
from pararnn_nanode.integrate.checkpoint import checkpoint
from pararnn_nanode.integrate.methods import Method
from pararnn_nanode.integrate.reads import Drive, reads
from pararnn_nanode.integrate.reversible import reversible
from pararnn_nanode.integrate.schedule import Schedule
from pararnn_nanode.integrate.sharing import while_reading
from pararnn_nanode.integrate.undoing import ReversibleMethod
from pararnn_nanode.integrate.walk import Progress, Report, Walk, backprop, check_finite, widths
from pararnn_nanode.solution import Solution

Gradient: TypeAlias = Literal["backprop", "checkpoint", "reversible", "adjoint"]

GRADIENTS: dict[str, Callable[[Walk, Tensor], Tensor]] = {
    "backprop": backprop,
    "checkpoint": checkpoint,
    "reversible": reversible,
    "adjoint": adjoint,
}


@while_reading
def integrate(
    field: Field,
    x: Tensor,
    schedule: Schedule,
    *,
    method: str | Method = "euler",
    gradient: str = "backprop",
    u: Drive = None,
    progress: Progress | None = None,
    parameters: Sequence[Tensor] | None = None,
) -> Solution:
    """The states at the asked times of `schedule`, starting from `x` at its first knot.

    Args:
        x: `(*batch, ...)`, in a floating or complex dtype.
        method: a name of `catalogue.METHODS`, or a method.
        gradient: "backprop" keeps every step on the graph; "checkpoint" keeps the square root of their number and walks again; both, and
            "reversible", which keeps none and walks back (methods `reversible_heun` and `alf`), give the derivatives of what was computed. "adjoint"
            integrates the adjoint equation back, whose gradient is that of the continuous problem.
        u: inputs: a tensor `(*batch, ...)` for all times or `(steps, *batch, ...)` held for each step, or a function of times `(n,)` or
            `(n, samples)` giving `(n, *batch, ...)`.
        progress: called with steps done and steps of the walk after each.
        parameters: tensors requiring gradients that the field uses and its module does not own; only "reversible" and "adjoint" need to know them.

    Warns `UnstableMethodWarning` where a reversible method is unstable for the equation and its gradient is had in another way.

    Raises:
        ConfigError: no such method or gradient, or a gradient that the method cannot have.
        NonFiniteStateError: the walk left the finite numbers.
    """
    chosen = find(method)
    if gradient not in GRADIENTS:
        raise ConfigError(f"gradient must be one of {', '.join(GRADIENTS)}, got {gradient!r}")
    if not (x.is_floating_point() or x.is_complex()):
        raise DTypeError(f"the state is {x.dtype}; a differential equation needs a floating or complex one: x.float()")
    field.check_state(x)
    report = Report() if gradient == "reversible" or isinstance(chosen, ReversibleMethod) else None
    walk = Walk(
        field=field,
        method=chosen,
        schedule=schedule,
        reads=reads(field, chosen, schedule, x, u),
        widths=widths(schedule, x),
        u=u,
        parameters=(*field.outside, *(parameters or ())),
        progress=progress,
        report=report,
    )
    states = GRADIENTS[gradient](walk, x)
    if states.shape[1:] != x.shape:
        raise ShapeError(f"the field turned a state {tuple(x.shape)} into {tuple(states.shape[1:])}; f(t, x) must have the shape of x")
    if states.dtype != x.dtype:
        raise DTypeError(f"the field turned a state of {x.dtype} into {states.dtype}; give x and the field's parameters the same dtype")
    check_finite(walk, x, states)
    found = Solution(
        x=states, t=schedule.times, nfe=walk.nfe, steps=walk.steps, method=chosen.name, gradient=gradient, reason=report.reason if report else ""
    )
    if report is not None and gradient == "reversible":
        report.told = _teller(weakref.ref(found))
    return found


def _teller(solution: weakref.ref[Solution]) -> Callable[[float], None]:
    """What notes the drift of a later backward pass in a solution, as long as somebody holds that."""

    def tell(drift: float) -> None:
        if (found := solution()) is not None:
            object.__setattr__(found, "drift", drift)

    return tell
