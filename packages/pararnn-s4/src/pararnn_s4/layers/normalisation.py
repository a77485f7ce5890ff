"""Normalisation of features `(batch, length, features)` that padding does not enter."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError, InputError
from pararnn_s4.layers.lengths import mask

NORMS = ("layer", "batch", "rms", None)


class Norm(nn.Module):
    """Normalisation by name: `"layer"`, `"rms"` (each sample by itself), `"batch"` (each feature over batch and time), None (none).

    Raises:
        ConfigError: another name.
    """

    def __init__(self, name: str | None, features: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        if name not in NORMS:
            raise ConfigError(f"norm={name!r} is unknown; choose one of {', '.join(map(repr, NORMS))}")
        self.name = name
        self.inner: nn.Module = nn.Identity()
        if name == "layer":
            self.inner = nn.LayerNorm(features, device=device, dtype=dtype)
        elif name == "rms":
            self.inner = nn.RMSNorm(features, device=device, dtype=dtype)
        elif name == "batch":
            self.inner = nn.BatchNorm1d(features, device=device, dtype=dtype)

    def forward(self, x: Tensor, counts: Tensor | None = None) -> Tensor:
        """`x` `(batch, length, features)` normalised; `counts` are the samples of each row that are no padding.

        Raises:
            InputError: batch statistics are to be taken of fewer than two samples.
        """
        normed: Tensor
        if self.name != "batch":
            normed = self.inner(x)
            return normed
        if counts is None or not self.training:
            normed = self._by_batch(x.flatten(0, 1)).view_as(x)
            return normed
        valid = mask(counts, x.shape[1])
        return torch.zeros_like(x).masked_scatter(valid.unsqueeze(-1), self._by_batch(x[valid]))

    def step(self, x: Tensor) -> Tensor:
        """One sample a row, `(batch, features)`.

        Raises:
            ConfigError: batch statistics were asked for, which one sample of a sequence does not give.
        """
        if self.name == "batch" and self.training:
            raise ConfigError("step in training mode cannot know the statistics of the batch over time; call eval() before decoding")
        normed: Tensor = self.inner(x)
        return normed

    def _by_batch(self, samples: Tensor) -> Tensor:
        if self.training and samples.shape[0] < 2:
            raise InputError(
                f"norm='batch' takes statistics over all samples of a batch that are no padding, which needs two; there are {samples.shape[0]}; "
                "call eval(), or use norm='layer'"
            )
        normed: Tensor = self.inner(samples)
        return normed
