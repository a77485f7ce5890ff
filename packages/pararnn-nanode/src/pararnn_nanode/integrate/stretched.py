"""An equation whose samples run through times of their own, as one that runs through 0, 1, 2, ... for all of them."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from pararnn.errors import ConfigError, InputError
from pararnn_nanode.fields.base import Field, Weights


def readable(times: Tensor) -> list[list[float]] | None:
    """Rows of numbers, or None where a transform such as `vmap` hides them."""
    try:
        found: list[list[float]] = times.detach().reshape(-1, times.shape[-1]).tolist()
    except RuntimeError:
        return None
    for row in found:
        if any(value != value or value in (float("inf"), float("-inf")) for value in row):
            raise InputError(f"times must be finite, got {row if len(row) < 10 else 'NaN or infinity among them'}")
    return found


class Stretched(Field):
    """`dx/ds = T f(t(s), x)`, where `t(s)` is linear between the times of a sample and meets time `k` at `s = k`.

    Args:
        field: the equation in `t`.
        times: float64, `(samples, times)` or `(times,)`; differentiable.
        numbers: the same as numbers, or None where they cannot be read.

    Attributes:
        stops: where the stretch changes or any sample meets a jump of the field.
    """

    def __init__(self, field: Field, times: Tensor, numbers: list[list[float]] | None) -> None:
        super().__init__()
        self.field = field
        edges = field.edges()
        if numbers is None and edges:
            raise ConfigError(
                f"the field jumps at {len(edges)} times, and vmap hides when its samples meet them; give times (samples, times) instead of using vmap"
            )
        stops = {float(k) for k in range(times.shape[-1])}
        for row in numbers or ():
            for k, (early, late) in enumerate(itertools.pairwise(row)):
                stops.update(k + (edge - early) / (late - early) for edge in edges if min(early, late) < edge < max(early, late))
        self.stops = tuple(sorted(stops))
        self.samples = times.ndim - 1
        self._times = times.movedim(-1, 0)
        self._stops = torch.tensor(self.stops, dtype=torch.float64, device=times.device)

    def weights(self, times: Tensor, anchors: Tensor | None = None, u: Tensor | None = None) -> Weights:
        low = times if anchors is None else anchors
        last = self._times.shape[0] - 2
        piece = low.floor().long().clamp(0, last)
        gap = _pick(self._times, piece + 1) - _pick(self._times, piece)
        # Weights are held between two stops, whichever way the time of a sample runs there.
        bracket = (torch.searchsorted(self._stops, low, right=True) - 1).clamp(0, len(self.stops) - 2)
        ends = torch.minimum(self._at(_pick(self._stops, bracket), piece), self._at(_pick(self._stops, bracket + 1), piece))
        return (gap, *self.field.weights(self._at(times, piece), ends, u))

    def _at(self, where: Tensor, piece: Tensor) -> Tensor:
        part = (where - piece).view((*where.shape, *(1,) * self.samples))
        start = _pick(self._times, piece)
        return start + part * (_pick(self._times, piece + 1) - start)

    def evaluate(self, x: Tensor, weights: Weights) -> Tensor:
        gap, *inner = weights
        gap = gap.to(x.real.dtype if x.is_complex() else x.dtype)
        return self.field.evaluate(x, tuple(inner)) * gap.reshape((*gap.shape, *(1,) * (x.ndim - gap.ndim)))


def _pick(values: Tensor, index: Tensor) -> Tensor:
    """`values[index]`, for an index of any shape that `vmap` may not read."""
    return values.index_select(0, index.reshape(-1)).reshape((*index.shape, *values.shape[1:]))
