"""A small layer as a cell, with inputs, for the conformance kit."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn_cola.layers.rnn import RNNLayer


def rnn(batch: int, length: int, *, seed: int) -> tuple[RNNLayer, Tensor]:
    """Six units on the stable side of criticality, and random inputs."""
    generator = torch.Generator().manual_seed(seed)
    layer = RNNLayer(3, 6, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh.mul_(0.7 / layer.operator_norm())
    return layer, torch.randn(batch, length, 3, generator=generator, dtype=torch.float64)
