"""Whether given matrices are what a manifold needs them to be."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.errors import InputError, ShapeError
from pararnn.transforms import inside_transform

SLACK = 100.0
"""How many roundings a matrix may be away from the manifold."""


def require_square(matrix: Tensor, name: str, n: int | None = None) -> None:
    """Raise `ShapeError` unless `matrix` is `(..., n, n)`."""
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2] or (n is not None and matrix.shape[-1] != n):
        size = "n" if n is None else n
        raise ShapeError(f"{name} needs the shape (..., {size}, {size}), got {tuple(matrix.shape)}")


def require_zero(residual: Tensor, what: str, *, allowed: float | None = None) -> None:
    """Raise `InputError` if `residual` exceeds `allowed`, or rounding; says nothing where values are not to be had (compilation, transforms)."""
    if torch.compiler.is_compiling() or inside_transform() or residual.is_meta or not residual.numel():
        return
    found = float(residual.detach().abs().max())
    allowed = SLACK * torch.finfo(residual.dtype).eps if allowed is None else allowed
    if not found <= allowed:
        raise InputError(f"{what}: off by {found:.3g}, where {allowed:.3g} is allowed", residual=found, allowed=allowed)
