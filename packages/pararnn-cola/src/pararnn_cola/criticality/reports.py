"""What a measurement of exponents says: the numbers, how they were measured, and which way they err."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

BIAS = {
    "product": "too high, by an amount that shrinks as 1/T: the norm of a product counts growth that does not last",
    "qr": "of either sign, more often too low, shrinking as 1/T: vectors need time to turn to the fastest direction, which a burn-in gives them",
}
GIVEN = "given"
FEW_TRAJECTORIES, FEW_STEPS = 4, 200


@dataclass(frozen=True)
class ExponentReport:
    """The largest Lyapunov exponent, in natural logarithms a step: above 0 small changes grow, below 0 they die."""

    exponent: float
    """the mean over trajectories; -inf where a product of Jacobians is exactly zero"""
    trajectories: tuple[float, ...]
    standard_error: float | None
    """of the mean, from the spread of the trajectories; None for a single one"""
    steps: int
    """T, the steps that count"""
    burn_in: int
    """steps before them that do not"""
    method: str
    bias: str
    """which way the value errs because T is finite"""
    inputs: str
    """whether the inputs were given, or how they were made up"""
    system: str
    """what was measured"""

    @property
    def notes(self) -> tuple[str, ...]:
        """What makes the value less sure than it could be."""
        found = []
        if len(self.trajectories) < FEW_TRAJECTORIES:
            found.append(f"{len(self.trajectories)} of the {FEW_TRAJECTORIES} trajectories that a mean should have")
        if self.steps < FEW_STEPS:
            found.append(f"T={self.steps} steps, where {FEW_STEPS} make the bias small")
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """The fields and notes as plain values."""
        return {**asdict(self), "trajectories": list(self.trajectories), "notes": list(self.notes)}

    def __str__(self) -> str:
        spread = "" if self.standard_error is None else f" ± {self.standard_error:.1g}"
        text = f"largest exponent of {self.system}: {self.exponent:+.4f}{spread} (T={self.steps} after {self.burn_in}, {self.method}, "
        text += f"{len(self.trajectories)} trajectories, inputs {self.inputs}); {self.bias}"
        return "; ".join([text, *self.notes])


@dataclass(frozen=True)
class SpectrumReport:
    """The largest Lyapunov exponents in falling order, in natural logarithms a step, each with the standard error of its mean over trajectories."""

    exponents: tuple[float, ...]
    standard_errors: tuple[float, ...] | None
    trajectories: tuple[tuple[float, ...], ...]
    steps: int
    burn_in: int
    state_size: int
    inputs: str
    system: str

    @property
    def dimension(self) -> float | None:
        """The Kaplan-Yorke dimension; None where the spectrum is cut off before its sum turns negative."""
        total = 0.0
        for index, exponent in enumerate(self.exponents):
            if total + exponent < 0:
                return index + total / abs(exponent) if math.isfinite(exponent) else float(index)
            total += exponent
        return float(self.state_size) if len(self.exponents) == self.state_size else None

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, with the dimension."""
        return {**asdict(self), "dimension": self.dimension}


def mean_and_error(values: Tensor) -> tuple[Tensor, Tensor | None]:
    """The mean over the first dimension, the trajectories, and its standard error; infinite values give an infinite error unless all are equal."""
    mean = values.mean(0)
    if len(values) < 2:
        return mean, None
    error = values.std(0) / math.sqrt(len(values))
    error = torch.where(values.isinf().any(0), torch.inf, error)
    return mean, torch.where((values == values[:1]).all(0), 0.0, error)
