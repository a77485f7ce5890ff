"""Which options of a block go together, asked when it is made rather than when it first runs."""

from __future__ import annotations

import importlib.util
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from pararnn.errors import BackendError, ConfigError
from pararnn_nanode.errors import PathWarning
from pararnn_nanode.fields.base import Field, paths_of
from pararnn_nanode.integrate import torchdiffeq_backend
from pararnn_nanode.integrate.catalogue import METHODS, find
from pararnn_nanode.integrate.controller import Controller
from pararnn_nanode.integrate.dopri5 import PAIRS
from pararnn_nanode.integrate.methods import Method
from pararnn_nanode.integrate.runge_kutta import RungeKutta
from pararnn_nanode.integrate.schedule import Schedule
from pararnn_nanode.paths.base import Span, WeightPath
from pararnn_nanode.paths.linear import LinearPath

ADAPTIVE = tuple(PAIRS)
BACKENDS = ("native", "torchdiffeq")
GRADIENTS = {
    "fixed": ("backprop", "checkpoint", "reversible", "adjoint"),
    "adaptive": ("backprop", "checkpoint", "adjoint"),
    "torchdiffeq": ("backprop", "adjoint"),
}
PARALLEL = ("auto", "newton", "picard", "windowed")


def span_of(span: Span) -> Span:
    """`span` as two numbers.

    Raises:
        ConfigError: it is not a start and an end, finite and apart.
    """
    start, end = map(float, span)
    if not (math.isfinite(start) and math.isfinite(end)) or start == end:
        raise ConfigError(f"span is (start, end) with two different finite times, got {span!r}")
    return start, end


def kind_of(method: str | Method, backend: str) -> str:
    """Which kind of integrator takes the steps: "fixed", "adaptive" or "torchdiffeq".

    Raises:
        ConfigError: there is no such backend or method.
        BackendError: torchdiffeq is not installed.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend == "torchdiffeq":
        if not isinstance(method, str) or method not in torchdiffeq_backend.METHODS:
            raise ConfigError(f"backend='torchdiffeq' has methods {', '.join(torchdiffeq_backend.METHODS)}, got {method!r}")
        if importlib.util.find_spec("torchdiffeq") is None:
            raise BackendError("backend='torchdiffeq' needs torchdiffeq: pip install 'pararnn-nanode[torchdiffeq]'")
        return "torchdiffeq"
    if method in ADAPTIVE:
        return "adaptive"
    if not isinstance(method, Method) and method not in METHODS:
        raise ConfigError(f"method must be one of {', '.join(sorted({*METHODS, *ADAPTIVE}))}, got {method!r}; backend='torchdiffeq' has others")
    return "fixed"


def check_gradient(gradient: str, method: str | Method, kind: str) -> None:
    """Raise `ConfigError` where `method` cannot have its gradient that way."""
    allowed = GRADIENTS[kind]
    if gradient not in GRADIENTS["fixed"]:
        raise ConfigError(f"gradient must be one of {', '.join(GRADIENTS['fixed'])}, got {gradient!r}")
    if gradient not in allowed:
        who = "backend='torchdiffeq'" if kind == "torchdiffeq" else f"the adaptive method {method!r}"
        raise ConfigError(f"{who} has gradients {', '.join(allowed)}, not {gradient!r}")
    if gradient == "reversible" and not find(method).reversible:
        able = [name for name in sorted(METHODS) if find(name).reversible]
        raise ConfigError(
            f"gradient='reversible' needs a method whose steps can be undone exactly, {' or '.join(able)}, not {find(method).name!r}; "
            "gradient='checkpoint' saves memory with any method"
        )


def check_parallel(parallel: str | None, window: int | None, field: Field, method: str | Method, gradient: str, kind: str) -> None:
    """Raise `ConfigError` where steps cannot be solved in parallel over depth that way."""
    if window is not None and parallel != "windowed":
        raise ConfigError(f"window={window!r} is the number of steps solved at once by parallel='windowed', got parallel={parallel!r}")
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise ConfigError(f"window must be a whole number of at least 1, got {window!r}")
    if parallel is None:
        return
    if parallel not in PARALLEL:
        raise ConfigError(f"parallel must be None or one of {', '.join(PARALLEL)}, got {parallel!r}")
    if kind != "fixed":
        raise ConfigError(f"parallel={parallel!r} needs steps that are known before: choose a fixed-step method of backend='native'")
    if gradient != "backprop":
        raise ConfigError(
            f"parallel={parallel!r} has a gradient of its own, equal to that of backprop; leave gradient={gradient!r} out ('windowed' saves memory)"
        )
    if parallel == "auto":
        return
    if not isinstance(find(method), RungeKutta):
        able = [name for name, one in METHODS.items() if isinstance(one, RungeKutta)]
        raise ConfigError(f"parallel={parallel!r} takes {', '.join(able)}; {find(method).name!r} carries more than the state from step to step")
    if parallel == "newton" and field.structure is None:
        raise ConfigError(f"parallel='newton' needs a field whose Jacobian has a known structure, which {type(field).__name__} has not; use 'picard'")


def check_options(options: Mapping[str, Any], integrate: Callable[..., Any], given: frozenset[str], what: str, *, kind: str) -> None:
    """Raise `ConfigError` for an option that `integrate` does not have or that the block itself gives, and for tolerances that cannot work."""
    parameters = inspect.signature(integrate).parameters.values()
    known = {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY and one.name not in given}
    for name in options:
        if name not in known:
            have = f"it has {', '.join(sorted(known))}" if known else "it has none"
            raise ConfigError(f"{what} has no option {name!r}; {have}")
    if kind == "adaptive":
        chosen = known | dict(options)
        Controller(rtol=chosen["rtol"], atol=chosen["atol"], first=chosen["first_step"], max_steps=chosen["max_steps"])


def warn_of_paths(field: Field, method: Method | None, *, steps: int, span: Span) -> None:
    """Warn of paths with more weights than the steps can tell apart, and of those made for another span.

    Args:
        method: a fixed-step method; None where steps are chosen on the way, so that there is no telling.
    """
    for name, path in _moving(field):
        if min(span) < min(path.span) or max(span) > max(path.span):
            warnings.warn(
                f"{name} is a {type(path).__name__} over {path.span}, and the block reads it over {span}; make the path with span={span}",
                PathWarning,
                stacklevel=3,
            )
    for name, path in paths_of(field):
        if method is None or not isinstance(path, LinearPath) or path.columns == 1 or path.coefficients.is_meta:
            continue
        knots = torch.linspace(*span, steps + 1, dtype=torch.float64, device=path.coefficients.device)
        lower, upper = knots[:-1], knots[1:]
        times = torch.cat([lower * (1 - node) + upper * node for node in method.nodes])
        rank = path.rank(times, torch.minimum(lower, upper).repeat(len(method.nodes)))
        if rank < path.columns:
            warnings.warn(
                f"{name} is a {type(path).__name__} of {path.columns} matrices, of which {steps} steps of {method.name} can tell {rank} apart; "
                f"the others cost parameters and add nothing: take more steps or fewer matrices",
                PathWarning,
                stacklevel=3,
            )


def warn_of_times(field: Field, plan: Schedule, *, span: Span) -> None:
    """Warn of paths that a walk reads outside both their span and that of the block, which was looked at when it was made.

    Times that each sample has for itself are not looked at: they may live on another device.
    """
    if plan.points is None or torch.compiler.is_compiling():
        return
    first, last = min(plan.points), max(plan.points)
    if min(span) <= first and last <= max(span):
        return
    for name, path in _moving(field):
        before, after = min(span[0], span[1], *path.span), max(span[0], span[1], *path.span)
        if first < before or last > after:
            # Without the time asked for, so that calls at many times are one warning.
            where = f"before {before:g}" if first < before else f"after {after:g}"
            warnings.warn(
                f"{name} is a {type(path).__name__} over {path.span} and is read {where}, where nothing was learned and a polynomial runs away; "
                "make the path with a span that holds all times",
                PathWarning,
                stacklevel=3,
            )


def _moving(field: Field) -> Iterator[tuple[str, WeightPath]]:
    """Paths in `field` whose weights change, with their names; of a path inside another one of the same span the inner one."""
    for name, module in field.named_modules():
        if not isinstance(module, WeightPath) or (isinstance(module, LinearPath) and module.columns == 1):
            continue
        if not any(isinstance(child, WeightPath) and child.span == module.span for child in module.children()):
            yield name, module
