"""Families of polynomials at many times: `(*times.shape)` to `(*times.shape, degree + 1)`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def monomial(x: Tensor, degree: int) -> Tensor:
    """`1, x, x**2, ...`; badly conditioned from a degree of about 4 on."""
    columns = [torch.ones_like(x)]
    for _ in range(degree):
        columns.append(columns[-1] * x)
    return torch.stack(columns, -1)


def chebyshev(x: Tensor, degree: int) -> Tensor:
    """Chebyshev polynomials of the first kind; by recurrence, so that the ends -1 and 1 and times outside have values and derivatives too."""
    columns = [torch.ones_like(x), x][: degree + 1]
    for _ in range(1, degree):
        columns.append(2 * x * columns[-1] - columns[-2])
    return torch.stack(columns, -1)


def legendre(x: Tensor, degree: int) -> Tensor:
    """Legendre polynomials, orthogonal on [-1, 1]."""
    columns = [torch.ones_like(x), x][: degree + 1]
    for n in range(1, degree):
        columns.append(((2 * n + 1) * x * columns[-1] - n * columns[-2]) / (n + 1))
    return torch.stack(columns, -1)


POLYNOMIALS: dict[str, Callable[[Tensor, int], Tensor]] = {"legendre": legendre, "chebyshev": chebyshev, "monomial": monomial}
