"""Weights that are polynomials of time."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_nanode.paths.base import Span
from pararnn_nanode.paths.basis import POLYNOMIALS
from pararnn_nanode.paths.linear import LinearPath, at_least


class PolyPath(LinearPath):
    """A polynomial of time for each weight.

    Legendre and Chebyshev polynomials are functions of `tau = 2 (t - start) / (end - start) - 1` and stay well conditioned; monomials are powers of
    the time itself, as in the paper, and neither their values nor their condition stay bounded (9 columns on [0, 1]: 4.0, 2.8 and 6.6e5).

    Args:
        shape: shape of the weights.
        degree: of the polynomials; `degree + 1` columns.
        basis: "legendre", "chebyshev" or "monomial".

    Source: Davis et al. (2020), arXiv 2005.01906; Legendre polynomials for weights: Rosso, Ruthotto, Sargsyan (2025), arXiv 2507.22045.
    """

    def __init__(
        self,
        shape: tuple[int, ...] | int,
        degree: int,
        *,
        basis: Literal["legendre", "chebyshev", "monomial"] = "legendre",
        span: Span = (0.0, 1.0),
        gain: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if basis not in POLYNOMIALS:
            raise ConfigError(f"basis must be one of {', '.join(POLYNOMIALS)}, got {basis!r}")
        super().__init__(shape, at_least(0, "degree", degree) + 1, span=span, gain=gain, device=device, dtype=dtype)
        self.family = basis

    @property
    def degree(self) -> int:
        """Degree of the polynomials."""
        return self.columns - 1

    def basis(self, times: Tensor, anchors: Tensor) -> Tensor:
        start, end = self.span
        x = times if self.family == "monomial" else 2 * (times - start) / (end - start) - 1
        return POLYNOMIALS[self.family](x, self.degree)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, basis={self.family!r}"
