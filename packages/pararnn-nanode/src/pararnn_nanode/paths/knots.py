"""Where times lie on an equal division of a span."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn_nanode.paths.base import Span


def locate(times: Tensor, span: Span, pieces: int) -> tuple[Tensor, Tensor]:
    """The piece each time lies in (int64) and how far into it, 0 to 1; times outside the span count as its nearest end."""
    start, end = span
    place = ((times - start) / (end - start) * pieces).clamp(0, pieces)
    index = place.detach().floor().clamp(max=pieces - 1)
    return index.to(torch.int64), place - index
