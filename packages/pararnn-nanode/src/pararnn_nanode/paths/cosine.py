"""Weights that are sums of half-range cosines of time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pararnn_nanode.paths.base import Span
from pararnn_nanode.paths.linear import LinearPath, at_least


class CosinePath(LinearPath):
    """`W(t) = sum over s = 0 ... order of a_s cos(s pi (t - start) / (end - start))`.

    As well conditioned as the trigonometric path of one turn in the span, but its two ends may differ.

    Args:
        shape: shape of the weights.
        order: the highest half turn; `order + 1` columns.
    """

    family = "cosine"

    def __init__(
        self,
        shape: tuple[int, ...] | int,
        order: int,
        *,
        span: Span = (0.0, 1.0),
        gain: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(shape, at_least(0, "order", order) + 1, span=span, gain=gain, device=device, dtype=dtype)

    @property
    def order(self) -> int:
        """The highest half turn."""
        return self.columns - 1

    def basis(self, times: Tensor, anchors: Tensor) -> Tensor:
        start, end = self.span
        turns = (times - start) * (math.pi / (end - start))
        return torch.cos(turns.unsqueeze(-1) * torch.arange(self.columns, dtype=times.dtype, device=times.device))
