"""What state-space models ask of lengths, inputs, states and eigenvalues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from pararnn.errors import ConfigError, DTypeError, ShapeError
from pararnn_s4.kernels.arrange import whole_number
from pararnn_s4.placement import has_numbers


class HasState(Protocol):
    """What is asked of a model about its state."""

    d_model: int
    is_real: bool

    @property
    def state_size(self) -> int: ...

    @property
    def state_dtype(self) -> torch.dtype: ...


def checked_length(length: int) -> int:
    """`length` as a plain number: torch.compile then builds one graph for each, because the blocks of the products depend on it.

    Raises:
        ShapeError: it is no whole number of at least 1.
    """
    length = whole_number(length, "length")
    if length < 1:
        raise ShapeError(f"the length is {length}; it must be at least 1")
    return length


def checked_input(u: Tensor, dtype: torch.dtype) -> Tensor:
    """`u` in `dtype`; `DTypeError` where it is complex."""
    if u.is_complex():
        raise DTypeError(f"inputs are real, got {u.dtype}; pass the real and the imaginary part as features of their own")
    return u.to(dtype)


def checked_state(model: HasState, state: Tensor, batch: int | None) -> Tensor:
    """`state` in the dtype of the states of `model`, for `batch` rows (None: as many as it has).

    Raises:
        ShapeError: it has another shape than `initial_state(batch)`.
        DTypeError: it is complex for a real model, or real for a complex one.
    """
    expected = (batch if batch is not None else state.shape[0] if state.ndim else 0, model.d_model, model.state_size)
    if state.shape != expected:
        kind = "real numbers" if model.is_real else "complex numbers, one of each conjugate pair"
        raise ShapeError(
            f"the state must be ({'batch' if batch is None else batch}, {model.d_model}, {model.state_size}), which are {kind}, "
            f"got {tuple(state.shape)}; initial_state(batch) gives a first one",
            shape=tuple(state.shape),
        )
    if state.is_complex() == model.is_real:
        raise DTypeError(f"the state of this model is {model.state_dtype}, got {state.dtype}; initial_state(batch) gives a first one")
    return state.to(model.state_dtype)


def require_real(rates: Tensor, init: str | Sequence[str]) -> None:
    """Raise `ConfigError` where eigenvalues of a model that keeps real ones only have imaginary parts."""
    if has_numbers(rates) and bool((rates.imag != 0).any()):
        raise ConfigError(
            f"is_real keeps real eigenvalues only, but init={init!r} has imaginary parts down to {rates.imag.min().item():.3g}; without "
            "them its states would be copies of each other; choose init='diag-real' (for a DPLR model 'dplr-real')"
        )
