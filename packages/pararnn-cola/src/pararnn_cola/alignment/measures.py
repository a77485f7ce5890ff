"""Numbers that compare signals `(batch, time, *units)`; each is None where nothing is left to compare."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def flat(signals: Tensor) -> Tensor:
    """Signals as float64 vectors `(batch, time, units)`."""
    return signals.detach().double().flatten(2)


def before_last(signals: Tensor) -> Tensor:
    """All steps but the last, where every signal is exact; a single step is kept."""
    return signals[:, :-1] if signals.shape[1] > 1 else signals


def cosine(signals: Tensor, exact: Tensor) -> float | None:
    """The mean cosine of `signals` with the vectors of `exact` that are not zero; a signal of zero counts as 0."""
    live = exact.ne(0).any(-1)
    if not bool(live.any()):
        return None
    # Scaled first, so that no square underflows.
    return float((_directions(signals[live]) * _directions(exact[live])).sum(-1).mean())


def sign_agreement(signals: Tensor, exact: Tensor) -> float | None:
    """The share of the entries of `exact` other than zero of which `signals` has the sign."""
    live = exact != 0
    return float((signals.sign() == exact.sign())[live].double().mean()) if bool(live.any()) else None


def norm_ratio(signals: Tensor, exact: Tensor) -> float | None:
    """The norm of all of `signals` over that of `exact`."""
    size = float(torch.linalg.vector_norm(exact))
    return float(torch.linalg.vector_norm(signals)) / size if size > 0 else None


def persistence(exact: Tensor) -> tuple[Tensor, float | None]:
    """Of the regression of each step's `exact` on the last one's without intercept, the coefficient a unit `(units,)`, and R^2 over all units."""
    earlier, later = exact[:, :-1], exact[:, 1:]
    square = earlier.square().sum((0, 1))
    alpha = torch.where(square > 0, (later * earlier).sum((0, 1)) / torch.where(square > 0, square, 1.0), 0.0)
    size = float(later.square().sum())
    return alpha, 1 - float((later - alpha * earlier).square().sum()) / size if size > 0 else None


def participation_ratio(exact: Tensor) -> float | None:
    """How many directions the vectors of `exact` fill: 1 if they lie on a line, the number of units if they fill all alike."""
    squares = torch.linalg.svdvals(exact.flatten(0, 1)).square()
    total = float(squares.sum())
    return total * total / float(squares.square().sum()) if total > 0 else None


def median(values: Tensor) -> float | None:
    """The median, None of nothing."""
    return float(values.median()) if values.numel() else None


def gains(signals: Tensor, instantaneous: Tensor) -> Tensor:
    """By how much a rule has multiplied each instantaneous signal that is not zero, `(entries,)`."""
    live = instantaneous != 0
    return signals[live] / instantaneous[live]


def gradient_cosine(gradient: Tensor, exact: Tensor) -> float | None:
    """The cosine of two gradients as vectors; 0 where the first is zero, None where the second is."""
    one, two = (values.detach().double().flatten() for values in (gradient, exact))
    return None if not bool(two.ne(0).any()) else float(_directions(one) @ _directions(two))


def mean(values: list[float | None]) -> float:
    """The mean of those that are numbers."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


def _directions(vectors: Tensor) -> Tensor:
    largest = vectors.abs().amax(-1, keepdim=True)
    scaled = vectors / torch.where(largest > 0, largest, 1.0)
    norm = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    return scaled / torch.where(norm > 0, norm, 1.0)
