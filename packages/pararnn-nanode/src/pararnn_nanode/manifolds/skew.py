"""Maps from skew matrices to rotations, written as maps from any tall matrix."""

from __future__ import annotations

import torch
from torch import Tensor


def skew(x: Tensor) -> Tensor:
    """`X - X^H` of `x` `(..., n, p)` padded with zeros to `n` columns: a tangent at the identity that moves its first `p` columns."""
    n, p = x.shape[-2:]
    square = torch.cat([x, x.new_zeros(*x.shape[:-1], n - p)], -1)
    return square - square.mH


def cayley(x: Tensor) -> Tensor:
    """The first `p` columns of `(I + A/2)^-1 (I - A/2)`, with the skew matrix `A` of `x` `(..., n, p)`.

    Cheap, and smooth everywhere, but never quite reaches rotations by half a turn (eigenvalue -1).
    """
    a = skew(x) / 2
    eye = torch.eye(x.shape[-2], dtype=x.dtype, device=x.device)
    rotation: Tensor = torch.linalg.solve(eye + a, (eye - a)[..., : x.shape[-1]])
    return rotation


def exponential(x: Tensor) -> Tensor:
    """The first `p` columns of `exp(A)`, with the skew matrix `A` of `x` `(..., n, p)`; reaches every rotation."""
    rotation: Tensor = torch.linalg.matrix_exp(skew(x))
    return rotation[..., : x.shape[-1]]
