"""Weights that are linear in their parameters: coefficients times functions of time."""

from __future__ import annotations

import abc
import math
from typing import Any

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError
from pararnn_nanode.paths.base import Span, WeightPath
from pararnn_nanode.paths.precision import precise

LATER = 0.3
"""Standard deviation of all columns after the first together, relative to the first: weights move, with about the variance of a constant path."""


def at_least(least: int, name: str, value: int) -> int:
    """`value`, a whole number of at least `least`.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} is a whole number of at least {least}, got {value!r}")
    return value


class LinearPath(WeightPath):
    """`W(t) = sum over k of basis_k(t) * coefficients[k]`.

    A subclass gives `basis`, in float64; the weights of all times are one product of matrices. Coefficients in half precision are multiplied in
    float32 and rounded once. Times may live on another device than the coefficients: the basis is computed where the times are, then moved.

    Args:
        shape: shape of the weights.
        columns: how many functions of time there are.
        gain: standard deviation of the first weights times the square root of their inputs; left out, it is 1 for weights of two or more
            dimensions and 0 for vectors, which are biases. Give it for a vector that is a diagonal.
    """

    family: str = ""
    """Which functions of time they are. Coefficients saved with one family are not loaded into another; empty where nothing is said."""

    def __init__(
        self,
        shape: tuple[int, ...] | int,
        columns: int,
        *,
        span: Span = (0.0, 1.0),
        gain: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(shape, span=span)
        self.gain = gain
        self.coefficients = nn.Parameter(torch.empty(at_least(1, "columns", columns), *self.shape, device=device, dtype=dtype))
        LinearPath.reset_parameters(self)

    @abc.abstractmethod
    def basis(self, times: Tensor, anchors: Tensor) -> Tensor:
        """The functions of time `(*times.shape, columns)` at float64 `times`; `anchors` as in `values`."""

    @property
    def columns(self) -> int:
        """How many functions of time there are. A method that reads fewer times than this cannot tell all of them apart (see `rank`)."""
        return self.coefficients.shape[0]

    @property
    def n_matrices(self) -> int:
        return self.columns

    def rank(self, times: Tensor, anchors: Tensor | None = None) -> int:
        """How many columns of coefficients can be told apart by the weights at `times`; at most `columns` and at most the number of times."""
        times = precise(times.detach().reshape(-1))
        with torch.no_grad():
            return int(torch.linalg.matrix_rank(self.basis(times, times if anchors is None else precise(anchors.reshape(-1)))))

    def reset_parameters(self) -> None:
        """Draw new coefficients, so that the weights at any time have about the variance `gain**2 / inputs` of a constant path."""
        inputs = self.coefficients[0, 0].numel()
        gain = self.gain if self.gain is not None else float(len(self.shape) > 1)
        with torch.no_grad():
            self.coefficients.normal_(std=gain * inputs**-0.5)
            self.coefficients[1:].mul_(self._later())

    def values(self, times: Tensor, anchors: Tensor) -> Tensor:
        basis = self.basis(times, anchors)
        coefficients = self.coefficients.flatten(1)
        work = torch.float32 if coefficients.dtype in (torch.float16, torch.bfloat16) else coefficients.dtype
        # Cast before moving: a device may lack float64.
        basis = basis.to(work).to(coefficients.device)
        flat = basis @ coefficients.to(work)
        return flat.to(coefficients.dtype).reshape(*times.shape, *self.shape)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # Beside the versions of modules, where torch.save keeps it and no key is added.
        metadata = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if metadata is not None and self.columns > 1:
            metadata["family"] = self.family

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        saved = local_metadata.get("family")
        if saved and self.family and saved != self.family:
            error_msgs.append(
                f"{prefix}coefficients belong to {saved} functions of time, and this {type(self).__name__} has {self.family} ones; load them into a "
                "path of the kind they were saved from"
            )
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)

    def _later(self) -> float:
        return LATER / math.sqrt(max(1, self.columns - 1))
