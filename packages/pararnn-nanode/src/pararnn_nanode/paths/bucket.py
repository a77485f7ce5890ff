"""Weights constant in each of several equal pieces of the span."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_nanode.paths.base import Span
from pararnn_nanode.paths.linear import LinearPath, at_least

ROUNDING = 1e-9
"""How far below an edge, in pieces, a time may be rounded and still count as on it."""


class BucketPath(LinearPath):
    """`buckets` weights, each held for an equal piece of the span; one bucket is a constant path, one a step is an untied residual network.

    The piece is looked up by the anchor, the lower end of a step: all stages of a step read the same weights, so that a method keeps its order
    where its steps end at the edges. On `steps` equal steps of the span, step `k` reads piece `floor(k * buckets / steps)` exactly. On a span that
    runs backwards, where the lower end of a step is its last, that is `ceil((k + 1) * buckets / steps) - 1`, the same if steps end at the edges.
    Before and after the span the first and the last piece go on.

    Args:
        shape: shape of the weights.
        buckets: how many pieces the span has.

    Source: Davis et al. (2020), arXiv 2005.01906, "Bucket"; the same as stacked neural ODEs, Massaroli et al. (2020), arXiv 2002.08071.
    """

    family = "piecewise constant"

    def __init__(
        self,
        shape: tuple[int, ...] | int,
        buckets: int,
        *,
        span: Span = (0.0, 1.0),
        gain: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(shape, at_least(1, "buckets", buckets), span=span, gain=gain, device=device, dtype=dtype)

    def pieces(self, anchors: Tensor) -> Tensor:
        """Which piece each anchor lies in, of dtype int64."""
        start, end = self.span
        place = (anchors - start) / (end - start) * self.columns
        # In a span that runs backwards the lower end of a step is the end that the walk reaches last.
        index = torch.floor(place + ROUNDING) if end > start else torch.ceil(place - ROUNDING) - 1
        return index.clamp(0, self.columns - 1).to(torch.int64)

    def basis(self, times: Tensor, anchors: Tensor) -> Tensor:
        return F.one_hot(self.pieces(anchors), self.columns).to(torch.float64)

    def values(self, times: Tensor, anchors: Tensor) -> Tensor:
        if self.columns == 1:
            return self.coefficients[0].expand(*times.shape, *self.shape)
        index = self.pieces(anchors).to(self.coefficients.device)
        return self.coefficients.index_select(0, index.reshape(-1)).reshape(*times.shape, *self.shape)

    def step(self, k: int, steps: int) -> Tensor:
        if not 0 <= k < steps:
            raise ConfigError(f"step {k} of {steps}: k lies in 0 ... {steps - 1}")
        start, end = self.span
        return self.coefficients[k * self.columns // steps if end > start else ((k + 1) * self.columns - 1) // steps]

    def edges(self) -> tuple[float, ...]:
        start, end = self.span
        return tuple(sorted(start + (end - start) * j / self.columns for j in range(1, self.columns)))

    def _later(self) -> float:
        return 1.0
