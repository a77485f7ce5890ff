"""The `options` of `odeint`, by the names that torchdiffeq gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_nanode.function import Layout
from pararnn_nanode.integrate.controller import Controller, Norm, mixed, rms

ADAPTIVE = frozenset(
    {"norm", "first_step", "min_step", "max_step", "step_t", "jump_t", "safety", "ifactor", "dfactor", "max_num_steps", "dtype", "progress"}
)
FIXED = frozenset({"step_size", "grid_constructor", "interp", "perturb", "norm", "progress"})


def check(options: Mapping[str, Any], known: frozenset[str], method: str) -> None:
    """Raise `ConfigError` where an option is not `known`."""
    wrong = sorted(set(options) - known)
    if wrong:
        raise ConfigError(f"{method} has no option {', '.join(map(repr, wrong))}; it has {', '.join(sorted(known))}")


def numbers(values: Any) -> tuple[float, ...]:
    """Numbers from a tensor, an array, or anything iterable; none from None."""
    if values is None:
        return ()
    found = values.tolist() if hasattr(values, "tolist") else list(values)
    return tuple(float(value) for value in (found if isinstance(found, list) else [found]))


def tolerance(name: str, value: Any, layout: Layout, like: Tensor) -> float | Tensor:
    """A number or a tensor that broadcasts to the joined state; a tuple holds one for each tensor of a tuple."""
    if isinstance(value, Tensor):
        if value.requires_grad:
            raise ConfigError(f"{name} requires grad, but a solution is not differentiable in its tolerances; pass {name}.detach()")
        return float(value) if value.ndim == 0 else value.to(like.device, like.dtype.to_real())
    if not isinstance(value, Sequence):
        return float(value)
    if layout.single or len(value) != len(layout.sizes):
        raise ConfigError(f"{name} has {len(value)} entries, and y0 is {'a tensor' if layout.single else f'a tuple of {len(layout.sizes)}'}")
    real = like.dtype.to_real()
    parts = [
        torch.as_tensor(part, dtype=real, device=like.device).expand(shape).reshape(-1) for part, shape in zip(value, layout.shapes, strict=True)
    ]
    return torch.cat(parts)


def norm_of(options: Mapping[str, Any], layout: Layout) -> Norm:
    """The norm over the joined state: root mean square, of a tuple the largest one, or what the option "norm" says of the state itself."""
    given: Callable[[Any], Tensor] | None = options.get("norm")
    if given is not None:
        chosen = given
        return lambda x: torch.as_tensor(chosen(layout.split(x)))
    if layout.single:
        return rms

    def largest(x: Tensor) -> Tensor:
        split = layout.split(x)
        return mixed(split if isinstance(split, tuple) else (split,))

    return largest


def controller(options: Mapping[str, Any], method: str, rtol: float | Tensor, atol: float | Tensor, norm: Norm) -> Controller:
    """What the options say about steps.

    Raises:
        ConfigError: an option is unknown, or its value cannot work.
    """
    check(options, ADAPTIVE, method)
    first = options.get("first_step")
    return Controller(
        rtol=rtol,
        atol=atol,
        norm=norm,
        first=None if first is None else abs(float(first)),
        smallest=float(options.get("min_step", 0.0)),
        largest=float(options.get("max_step", float("inf"))),
        safety=float(options.get("safety", 0.9)),
        grow=float(options.get("ifactor", 10.0)),
        shrink=float(options.get("dfactor", 0.2)),
        max_steps=int(options.get("max_num_steps", 1_000_000)),
    )
