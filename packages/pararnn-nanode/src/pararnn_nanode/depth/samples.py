"""Largest numbers of each sample: what one sample needs is not hidden behind another whose numbers are larger."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.structures import Diagonal, Structure


def largest(sizes: Tensor, structure: type[Structure] | None) -> Tensor:
    """The largest of `sizes` `(steps, *state)` over steps and over the channels that a field of this structure couples, with their dimensions kept.

    A field that does not say what it couples is taken to leave rows of its first dimension apart, where there are more dimensions than one.
    """
    if structure is Diagonal:
        return sizes.amax(0, keepdim=True)
    if structure is None and sizes.ndim > 2:
        return sizes.amax((0, *range(2, sizes.ndim)), keepdim=True)
    return sizes.amax((0, -1) if sizes.ndim > 1 else 0, keepdim=True)


def part(sizes: Tensor, whole: Tensor) -> Tensor:
    """`sizes / whole`, where nothing of nothing is nothing."""
    return sizes / whole.clamp(min=torch.finfo(whole.dtype).tiny)
