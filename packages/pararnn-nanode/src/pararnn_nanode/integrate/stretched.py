"""An equation whose samples run through times of their own, as one that runs through 0, 1, 2, ... for all of them."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from pararnn.errors import ConfigError, InputError
from pararnn_nanode.fields.base import Field, Weights

ROUNDING = 1e-12
"""Parts of the way between two jumps that count as none."""


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
    """`dx/ds = dt/ds f(t(s), x)`, where `t(s)` is linear between the times of a sample and meets time `k` at `s = k`.

    Args:
        field: the equation in `t`.
        times: float64, `(samples, times)` or `(times,)`; differentiable.
        numbers: the same as numbers, or None where they cannot be read.

    Attributes:
        stops: where the stretch changes or any sample meets a jump of the field.
    """

    t: Tensor

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
        # A buffer, so that what captures a field for later captures its times too.
        self.register_buffer("t", times.movedim(-1, 0), persistent=False)
        self._stops = torch.tensor(self.stops, dtype=torch.float64, device=times.device)
        self._edges = torch.tensor(edges, dtype=torch.float64, device=times.device)

    def weights(self, times: Tensor, anchors: Tensor | None = None, u: Tensor | None = None) -> Weights:
        low = times if anchors is None else anchors
        piece = low.floor().long().clamp(0, self.t.shape[0] - 2)
        # Weights are held between two stops, whichever way the time of a sample runs there.
        bracket = (torch.searchsorted(self._stops, low, right=True) - 1).clamp(0, len(self.stops) - 2)
        enter, leave = _pick(self._stops, bracket), _pick(self._stops, bracket + 1)
        early, late = self._at(enter, piece), self._at(leave, piece)
        rate = (late - early) / self._wide(leave - enter)
        moments = early + rate * self._wide(times - enter)
        return (rate, *self.field.weights(moments, torch.minimum(early, late).detach(), u))

    def evaluate(self, x: Tensor, weights: Weights) -> Tensor:
        rate, *inner = weights
        rate = rate.to(x.real.dtype if x.is_complex() else x.dtype)
        return self.field.evaluate(x, tuple(inner)) * rate.reshape((*rate.shape, *(1,) * (x.ndim - rate.ndim)))

    def _at(self, where: Tensor, piece: Tensor) -> Tensor:
        """The times of all samples at the stops `where` in pieces of the stretch.

        A sample meets a jump at a time that stays when its own times move: so, where it lies between its start and a jump, it is a part of that way.
        """
        part = self._wide(where - piece)
        start, end = _pick(self.t, piece), _pick(self.t, piece + 1)
        plain = start + part * (end - start)
        if self._edges.numel() == 0:
            return plain
        rises = start <= end
        lower, upper = torch.where(rises, start, end), torch.where(rises, end, start)
        first = torch.searchsorted(self._edges, plain.detach(), right=True)
        below = _pick(self._edges, (first - 1).clamp(min=0))
        above = _pick(self._edges, first.clamp(max=self._edges.numel() - 1))
        lower = torch.where((first > 0) & (below > lower), below, lower)
        upper = torch.where((first < self._edges.numel()) & (above < upper), above, upper)
        gap = (upper - lower).detach()
        share = torch.where(gap > 0, (plain - lower).detach() / gap, part).clamp(0.0, 1.0)
        # Rounding must not leave a sample beside a jump that it has reached.
        share = torch.where(share < ROUNDING, 0.0, torch.where(share > 1.0 - ROUNDING, 1.0, share))
        return lower * (1.0 - share) + upper * share

    def _wide(self, stretched: Tensor) -> Tensor:
        """A value of each time, for all samples."""
        return stretched.view((*stretched.shape, *(1,) * self.samples))


def _pick(values: Tensor, index: Tensor) -> Tensor:
    """`values[index]`, for an index of any shape that `vmap` may not read."""
    return values.index_select(0, index.reshape(-1)).reshape((*index.shape, *values.shape[1:]))
