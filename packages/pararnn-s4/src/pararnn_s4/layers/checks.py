"""What layers and models check of their inputs, with messages that say what to pass instead."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import ConfigError, DTypeError, ShapeError


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


def check_rate(rate: float) -> None:
    """Raise `ConfigError` unless `rate` is a positive number."""
    if not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise ConfigError(f"rate must be a positive number, got {rate!r}; it is the time between samples over that of training")


def check_state(state: Tensor, batch: int, ssm: Any) -> None:
    """Raise `ShapeError` unless `state` is one of the state space `ssm` for `batch` rows, in its dtype."""
    expected = (batch, ssm.d_model, ssm.state_size)
    if not isinstance(state, Tensor) or state.shape != expected or state.dtype != ssm.state_dtype:
        found = f"{tuple(state.shape)} {state.dtype}" if isinstance(state, Tensor) else type(state).__name__
        pairs = "" if ssm.is_real else ", one complex number of each conjugate pair"
        raise ShapeError(f"the state must be {expected} {ssm.state_dtype}{pairs}, got {found}; init_state(batch) gives a first one")


def _check_dtype(x: Tensor, owner: str, dtype: torch.dtype) -> None:
    if x.dtype != dtype and not (x.is_floating_point() and torch.is_autocast_enabled(x.device.type)):
        raise DTypeError(f"x is {x.dtype}, but {owner} holds {dtype}; convert one of them: x.to({dtype}), or the module .to({x.dtype})")


def _found(x: object) -> str:
    return str(tuple(x.shape)) if isinstance(x, Tensor) else type(x).__name__
