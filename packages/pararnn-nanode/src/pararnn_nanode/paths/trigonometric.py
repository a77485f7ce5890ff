"""Weights that are trigonometric polynomials of time."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError
from pararnn_nanode.paths.base import Span
from pararnn_nanode.paths.linear import LinearPath, at_least
from pararnn_nanode.paths.precision import widened


class TrigPath(LinearPath):
    """`W(t) = a_0 + sum over s = 1 ... order of a_s cos(s omega t) + b_s sin(s omega t)`; the coefficients are `a_0, a_1, ..., b_1, ...`.

    The weights are smooth and bounded, not orthogonal; for a walk on the orthogonal group see `GivensWalk`, each entry of which is such a polynomial.

    Args:
        shape: shape of the weights.
        order: the highest harmonic; `2 order + 1` columns.
        omega: the angular frequency in radians per unit of time, or "period" for one turn in the span. One turn is as well conditioned as a basis
            can be (1.42), but makes the weights equal at both ends of the span; the paper's `omega=1` on [0, 1] is as badly conditioned as powers.
        learn_omega: whether omega is a parameter too.

    Source: Davis et al. (2020), arXiv 2005.01906, with the constant term that its orthogonal walks need.
    """

    family = "trigonometric"

    def __init__(
        self,
        shape: tuple[int, ...] | int,
        order: int,
        *,
        omega: float | Literal["period"] = "period",
        learn_omega: bool = False,
        span: Span = (0.0, 1.0),
        gain: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(shape, 2 * at_least(0, "order", order) + 1, span=span, gain=gain, device=device, dtype=dtype)
        if omega == "period":
            omega = 2 * math.pi / abs(self.span[1] - self.span[0])
        if isinstance(omega, str) or not math.isfinite(omega) or omega == 0:
            raise ConfigError(f'omega is "period" or a finite frequency other than 0, got {omega!r}')
        self.first_omega = float(omega)
        real = self.coefficients.dtype.to_real()
        self.omega = nn.Parameter(torch.tensor(self.first_omega, device=device, dtype=real)) if learn_omega else self.first_omega

    @property
    def order(self) -> int:
        """The highest harmonic."""
        return self.columns // 2

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if isinstance(self.omega, Tensor):
            with torch.no_grad():
                self.omega.fill_(self.first_omega)

    def basis(self, times: Tensor, anchors: Tensor) -> Tensor:
        if isinstance(self.omega, Tensor):
            # A module cast to a complex dtype has a complex omega, whose imaginary part is zero and stays so.
            omega = widened(self.omega.real)
            turns = times.to(omega.dtype).to(omega.device) * omega
        else:
            turns = times * self.omega
        angles = turns.unsqueeze(-1) * torch.arange(1, self.order + 1, dtype=turns.dtype, device=turns.device)
        return torch.cat([torch.ones_like(turns).unsqueeze(-1), angles.cos(), angles.sin()], -1)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, omega={self.first_omega:g}{' (learned)' if isinstance(self.omega, Tensor) else ''}"
