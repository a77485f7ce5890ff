"""Neural ODEs whose weights are functions of time.

`NANODE` is the block: a field, whose weights are paths, and a method that integrates it. `odeint` integrates any function, with the arguments
of torchdiffeq. Names load when they are first used, so that listing this plugin imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pararnn_nanode.ode import odeint as odeint

HOMES = {
    "ALF": "integrate.alf",
    "AppendTimeField": "fields.append_time",
    "BracketFlow": "manifolds.bracket",
    "BucketPath": "paths.bucket",
    "CallableField": "fields.callable",
    "CallablePath": "paths.callable",
    "ConstantPath": "paths.constant",
    "ConvField": "fields.convolution",
    "CosinePath": "paths.cosine",
    "DenseField": "fields.dense",
    "DiagonalField": "fields.diagonal",
    "Field": "fields.base",
    "GivensWalk": "manifolds.givens",
    "HyperPath": "paths.hyper",
    "InexactGradientWarning": "errors",
    "NANODE": "block",
    "NANODECell": "depth.cell",
    "NonFiniteStateError": "errors",
    "NotReversibleError": "errors",
    "OrthogonalPath": "manifolds.orthogonal",
    "PathWarning": "errors",
    "PolyPath": "paths.polynomial",
    "ResidualStack": "residual",
    "Solution": "solution",
    "StepUnderflowError": "errors",
    "TrigPath": "paths.trigonometric",
    "UnstableMethodWarning": "errors",
    "WeightPath": "paths.base",
    "geodesic": "manifolds.geodesic",
    "odeint": "ode",
    "odeint_adjoint": "ode",
    "odeint_event": "ode",
    "odeint_solution": "ode",
    "plot_path": "plotting",
    "plot_weights": "plotting",
}
__all__ = [*HOMES]


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    """The names of this package, those not yet loaded included."""
    return sorted({*globals(), *HOMES})
