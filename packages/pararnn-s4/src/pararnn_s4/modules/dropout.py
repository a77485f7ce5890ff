"""Dropout that can keep its mask along the sequence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError


class DropoutNd(nn.Module):
    """Dropout over `(batch, features, *lengths)`, or `(batch, *lengths, features)` without `transposed`.

    `tie` drops a feature of a sequence at every position alike, as dropout of channels does; else each entry is dropped on its own. What
    is kept is scaled by `1 / (1 - p)`.

    Raises:
        ConfigError: `p` is outside of [0, 1).

    Source: Srivastava et al., "Dropout", 2014; tied along a dimension: Tompson et al., "Efficient object localization", 2015.
    """

    def __init__(self, p: float = 0.5, tie: bool = True, transposed: bool = True) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ConfigError(f"dropout probability has to be in [0, 1), but got {p}")
        self.p = p
        self.tie = tie
        self.transposed = transposed

    # Plain annotations: torch.jit.script reads them.
    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        shape = list(x.shape)
        if self.tie:
            features = 1 if self.transposed else x.ndim - 1
            shape = [size if dimension in (0, features) else 1 for dimension, size in enumerate(shape)]
        kept = torch.rand(shape, device=x.device) < 1.0 - self.p
        return x * kept * (1.0 / (1.0 - self.p))

    def extra_repr(self) -> str:
        return f"p={self.p}, tie={self.tie}, transposed={self.transposed}"
