"""Which rows of a batch take part in a step, and with what weight."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pararnn.errors import DTypeError, InputError, ShapeError
from pararnn_cola.layers.base import rows_like
from pararnn_cola.learners.surroundings import plain


@dataclass(frozen=True)
class Rows:
    """One step's rows: which exist, which have a loss, and the weight of that loss. The common case, all with weight 1, costs nothing."""

    present: Tensor | None
    """`(*lead, batch)`, true where there is a step at all; None: everywhere"""
    live: Tensor | bool
    """true where there is a loss with a weight above zero; a bool speaks for all rows"""
    weight: Tensor | float
    """`(*lead, batch)`, or one number for all"""

    def weighted(self, values: Tensor, unit_dims: int) -> Tensor:
        """`values` times the weight of their row; zero, whatever they were, in rows without a loss."""
        if isinstance(self.weight, float):
            scaled = values if self.weight == 1.0 else values * self.weight
        else:
            scaled = values * rows_like(self.weight.to(values.dtype), values, unit_dims)
        if isinstance(self.live, Tensor):
            return torch.where(rows_like(self.live, values, unit_dims), scaled, torch.zeros((), dtype=scaled.dtype, device=scaled.device))
        return scaled

    def blank(self, values: Tensor) -> Tensor:
        """Targets with zeros, a class that always exists, where no loss is asked for.

        Targets that are not one entry a row are left for the loss to complain of; broadcasting would hide it.
        """
        if not isinstance(self.live, Tensor) or values.shape[: self.live.dim()] != self.live.shape:
            return values
        blank = torch.zeros((), dtype=values.dtype, device=values.device)
        return torch.where(rows_like(self.live, values, values.dim() - self.live.dim()), values, blank)


def rows_of(batch: tuple[int, ...], target: Tensor | None, weight: Tensor | float | None, mask: Tensor | None, device: torch.device) -> Rows:
    """The rows of a step over samples of shape `batch`.

    Raises:
        ShapeError: `weight` or `mask` is not one entry a sample.
        DTypeError: `mask` is not boolean.
        InputError: a weight is negative or not finite (tensors are looked at on the CPU only).
    """
    present = None if mask is None else per_row("mask", mask, batch, device)
    if present is not None and present.dtype != torch.bool:
        raise DTypeError(f"mask is boolean, true where a row has a step, got {present.dtype}; compare it with something first", dtype=present.dtype)
    if weight is None or isinstance(weight, int | float):
        number = 1.0 if weight is None else float(weight)
        if not 0.0 <= number < float("inf"):
            raise InputError(f"weight={number}; the weight of a loss is finite and not negative", weight=number)
        live = False if target is None or number == 0.0 else True if present is None else present
        return Rows(present, live, number)
    weights = per_row("weight", weight, batch, device)
    if present is not None:
        weights = torch.where(present, weights, torch.zeros_like(weights))
    if weights.device.type == "cpu" and not bool(((weights >= 0) & (weights < float("inf"))).all()):
        raise InputError(f"weights run from {weights.min().item()} to {weights.max().item()}; the weight of a loss is finite and not negative")
    return Rows(present, False if target is None else weights > 0, weights)


def all_finite(values: Tensor) -> bool:
    """Whether no entry of `values` is NaN or infinite, at the price of one sum; a device has to be waited for."""
    # A sum may overflow by itself, so where it is not finite a closer look decides.
    return math.isfinite(values.sum().item()) or bool(values.isfinite().all())


def per_row(name: str, values: Tensor, batch: tuple[int, ...], device: torch.device) -> Tensor:
    """`values`, one entry a sample, as `(*lead, batch)` on `device`; `(batch,)` serves all networks of an ensemble.

    Raises:
        DTypeError: `values` is no tensor.
        ShapeError: it has another shape.
    """
    if not isinstance(values, Tensor):
        raise DTypeError(f"{name} is a tensor with one entry a sample, got {type(values).__name__}", type=type(values).__name__)
    if values.dim() == 0 or values.shape != batch[max(len(batch) - values.dim(), 0) :]:
        raise ShapeError(f"{name} has shape {tuple(values.shape)}; one entry a sample is {batch[-1:]}", shape=tuple(values.shape), batch=batch)
    return plain(values).to(device).expand(batch)
