"""A power of a matrix, together with the sum that a linear recurrence has gathered by then."""
# ruff: noqa: N803, N806 -- A, L are the names of the literature and of the reference functions.

from __future__ import annotations

from typing import overload

import torch
import torch.nn.functional as F
from jaxtyping import Shaped
from torch import Tensor

from pararnn.errors import ConfigError, ShapeError


@overload
def power(L: int, A: Tensor, v: None = None) -> Tensor: ...


@overload
def power(L: int, A: Tensor, v: Tensor) -> tuple[Tensor, Tensor]: ...


def power(L: int, A: Shaped[Tensor, "*lead N N"], v: Shaped[Tensor, "*lead N L"] | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """The matrix power `A^L`, and with `v` also the vector `sum_i A^i v_i` over the columns `v_0 ... v_(L-1)`.

    Takes `2 log2 L` matrix products. Leading dimensions of A and v broadcast; neither is changed, and both have gradients.

    Raises:
        ConfigError: `L` is negative.
        ShapeError: A is not square, or v is not `(..., N, L)`.
    """
    if L < 0:
        raise ConfigError(f"powers are taken of a number of steps, got L={L}; for a negative one invert the matrix first")
    if A.ndim < 2 or A.shape[-1] != A.shape[-2]:
        raise ShapeError(f"only a square matrix has powers, got shape {tuple(A.shape)}")
    if v is not None:
        if v.ndim < 2 or v.shape[-2:] != (A.shape[-1], L):
            raise ShapeError(f"v must end in (N, L) = {(A.shape[-1], L)}, got shape {tuple(v.shape)}")
        dtype = torch.promote_types(A.dtype, v.dtype)
        A, v = A.to(dtype), v.to(dtype)
    result: Tensor | None = None
    square, steps = A, L
    while steps:
        if steps % 2:
            result = square if result is None else square @ result
        steps //= 2
        if v is not None and v.shape[-1] > 1:
            # Columns in pairs: v_0 + A v_1, v_2 + A v_3, ... are the columns of the same sum for A^2; an odd last one stays alone.
            even, odd = v[..., 0::2], square @ v[..., 1::2]
            v = even + F.pad(odd, (0, even.shape[-1] - odd.shape[-1]))
        if steps:
            square = square @ square
    if result is None:
        result = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device).expand_as(A)
    if L < 2:
        # The caller gets memory of its own here too.
        result = result.clone()
    if v is None:
        return result
    return result, v.sum(-1)
