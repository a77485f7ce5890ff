"""What layers and models check of their inputs, with messages that say what to pass instead."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError, DTypeError, ShapeError

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_sequences(x: Tensor, *, size: int, name: str, owner: str, dtype: torch.dtype, features_first: bool = False) -> None:
    """Raise unless `x` is `(batch, length, size)`, or `(batch, size, length)` with `features_first`, of `dtype` (or autocast is on).

    Raises:
        ShapeError: another shape, or no tensor.
        DTypeError: another dtype.
    """
    form = f"(batch, {name}, length), since transposed=True," if features_first else f"(batch, length, {name})"
    if not isinstance(x, Tensor) or x.ndim != 3 or x.shape[1 if features_first else 2] != size:
        hint = "; for one sample at a time use step" if isinstance(x, Tensor) and x.ndim == 2 and x.shape[-1] == size else ""
        raise ShapeError(f"{owner} takes a tensor x {form} with {name}={size}, got {_found(x)}{hint}")
    _check_dtype(x, owner, dtype)


def check_sample(x: Tensor, *, size: int, name: str, owner: str, dtype: torch.dtype) -> None:
    """Raise unless `x` is one sample a row, `(batch, size)`, of `dtype` (or autocast is on).

    Raises:
        ShapeError: another shape, or no tensor.
        DTypeError: another dtype.
    """
    if not isinstance(x, Tensor) or x.ndim != 2 or x.shape[-1] != size:
        hint = "; for whole sequences call the module" if isinstance(x, Tensor) and x.ndim == 3 else ""
        raise ShapeError(f"{owner}.step takes one sample a row, a tensor x (batch, {name}) with {name}={size}, got {_found(x)}{hint}")
    _check_dtype(x, owner, dtype)


def checked_rate(rate: Any) -> float:
    """`rate` as a positive float; numbers of numpy and scalar tensors are taken too.

    Raises:
        ConfigError: another value, or a tensor that wants a gradient, which a rate does not give.
    """
    try:
        if isinstance(rate, str) or (isinstance(rate, Tensor) and rate.requires_grad):
            raise TypeError
        value = float(rate)
    except (TypeError, ValueError, RuntimeError):
        value = math.nan
    if not 0 < value < math.inf:
        raise ConfigError(f"rate must be a positive number, got {rate!r}; it is the time between samples over that of training")
    return value


def optional_count(name: str, value: Any) -> int | None:
    """`checked_count` of a `value` that may be None."""
    return None if value is None else checked_count(name, value, otherwise=" or None")


def checked_count(name: str, value: Any, *, least: int = 1, otherwise: str = "") -> int:
    """`value` as an int; numbers of numpy and scalar tensors are taken too. `otherwise` names what else it might have been.

    Raises:
        ConfigError: no whole number, or one below `least`.
    """
    try:
        count = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = least - 1
    if count < least:
        raise ConfigError(f"{name} must be an int of at least {least}{otherwise}, got {value!r}")
    return count


def check_probability(name: str, value: Any) -> None:
    """Raise `ConfigError` unless `value` is a number in [0, 1)."""
    try:
        fits = 0 <= value < 1
    except TypeError:
        fits = False
    if not fits:
        raise ConfigError(f"{name} must lie in [0, 1), got {value!r}")


def check_parameter_dtype(dtype: torch.dtype | None) -> None:
    """Raise `DTypeError` unless parameters can have `dtype`: a real floating one, or None for torch's default."""
    if dtype is not None and dtype not in FLOATS:
        raise DTypeError(f"parameters cannot be {dtype}; choose one of {', '.join(map(str, FLOATS))} (states are complex by themselves)")


def check_state(state: Tensor, batch: int, ssm: Any) -> None:
    """Raise unless `state` is one of the state space `ssm` for `batch` rows.

    Raises:
        ShapeError: another shape, or no tensor.
        DTypeError: another dtype.
    """
    check_entry(state, (batch, ssm.d_model, ssm.state_size), ssm.state_dtype, "the state")


def check_entry(state: Tensor, shape: tuple[int, ...], dtype: torch.dtype, name: str) -> None:
    """Raise unless `state`, of which users read by `name`, is a tensor of that shape and dtype.

    Raises:
        ShapeError: another shape, or no tensor.
        DTypeError: another dtype.
    """
    pairs = ", one complex number of each conjugate pair" if dtype.is_complex else ""
    expected = f"{name} must be {shape} {dtype}{pairs}"
    if not isinstance(state, Tensor) or state.shape != shape:
        raise ShapeError(f"{expected}, got {_found(state)}; init_state(batch) gives a first one")
    if state.dtype != dtype:
        raise DTypeError(f"{expected}, got {_found(state)} {state.dtype}; init_state(batch) gives a first one")


def check_owned(module: nn.Module, name: str, asked: str) -> None:
    """Raise `ConfigError` where a hook puts the parameter `name` on `module` anew before each call, of which `asked` is none."""
    if name in vars(module):
        raise ConfigError(
            f"{asked} of {type(module).__name__} would read a stale {name}: a hook (as of torch.nn.utils.prune) sets it when the module is called; "
            f"make it last with torch.nn.utils.prune.remove(module, {name!r}), or use torch.nn.utils.parametrize",
            parameter=name,
        )


def _check_dtype(x: Tensor, owner: str, dtype: torch.dtype) -> None:
    if x.dtype != dtype and not (x.is_floating_point() and torch.is_autocast_enabled(x.device.type)):
        other = f", or the module .to({x.dtype})" if x.dtype in FLOATS else ""
        raise DTypeError(f"x is {x.dtype}, but {owner} holds {dtype}; convert {'one of them' if other else 'it'}: x.to({dtype}){other}")


def _found(x: object) -> str:
    return str(tuple(x.shape)) if isinstance(x, Tensor) else type(x).__name__
