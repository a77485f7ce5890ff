"""From features over time to one vector a sequence, in one go or as chunks come in."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from pararnn.scans.api import HALF

Pool: TypeAlias = Literal["mean", "last"] | None


def pool(features: Tensor, counts: Tensor | None, how: Pool, summary: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The pooled vectors `(batch, features)` (the features as they are for None), and summary and count after this chunk.

    Args:
        features: `(batch, length, features)`.
        counts: samples of each row that count, None for all.
        how: `"mean"` over all samples so far, `"last"` for the latest.
        summary: sum of the features so far, or the latest features, `(batch, features)`, at least in float32.
        seen: how many samples that were, `(batch,)`.

    A row of which nothing has been seen is pooled to zeros.
    """
    length = features.shape[1]
    lengths = seen.new_full(seen.shape, length) if counts is None else counts
    if how is None:
        return features, summary, seen + lengths
    if how == "mean":
        wide = features.float() if features.dtype in HALF else features
        valid = torch.arange(length, device=features.device).unsqueeze(-1) < lengths.view(-1, 1, 1)
        summary = summary + (wide if counts is None else torch.where(valid, wide, 0.0)).sum(1)
        seen = seen + lengths
        return (summary / seen.clamp(min=1).unsqueeze(-1)).to(features.dtype), summary, seen
    if length:
        latest = features.gather(1, (lengths - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, features.shape[-1])).squeeze(1)
        summary = torch.where((lengths > 0).unsqueeze(-1), latest.to(summary.dtype), summary)
    return summary.to(features.dtype), summary, seen + lengths
