"""A state-space model in continuous time, as its parameters give it: `x' = A x + B u`, `y = C x`, `A = diag(rate) - P P*`."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Continuous(NamedTuple):
    """The model of each feature, in double precision; real, or complex with one of each conjugate pair.

    Attributes:
        rate: the diagonal of `A`, per second, `(d_model, state)`.
        input: `B`, `(d_model, state)`.
        output: `C`, `(channels, d_model, state)`.
        dt: seconds between samples, `(d_model, 1)`, or `(d_model, state)` where each state has its own.
        low_rank: `P`, `(rank, d_model, state)`; None for a diagonal model.
    """

    rate: Tensor
    input: Tensor
    output: Tensor
    dt: Tensor
    low_rank: Tensor | None = None
