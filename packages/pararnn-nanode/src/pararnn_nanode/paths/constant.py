"""Weights that do not change: the autonomous equation."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn_nanode.paths.base import Span
from pararnn_nanode.paths.linear import LinearPath


class ConstantPath(LinearPath):
    """One weight for all times, of which every grid is a view.

    Args:
        shape: shape of the weights.
        gain: as in `LinearPath`.
    """

    def __init__(
        self,
        shape: tuple[int, ...] | int,
        *,
        span: Span = (0.0, 1.0),
        gain: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(shape, 1, span=span, gain=gain, device=device, dtype=dtype)

    @property
    def weight(self) -> Tensor:
        """The weights `(*shape)`, a view of the coefficients."""
        return self.coefficients.squeeze(0)

    def basis(self, times: Tensor, anchors: Tensor) -> Tensor:
        return torch.ones_like(times).unsqueeze(-1)

    def values(self, times: Tensor, anchors: Tensor) -> Tensor:
        return self.weight.expand(*times.shape, *self.shape)
