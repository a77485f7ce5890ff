"""The two slow coefficients of COLA, estimated as signals go by.

For each unit: `alpha`, by which its signal decays from one step to the next, and `mu`, the strength of the feedback that its signal has through the
network. Both are ratios of exponentially weighted means over the batch; a doubled batch, or a rescaled loss, changes neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pararnn.errors import ConfigError

NAMES = ("S", "Q", "N", "M", "alpha", "mu")


@dataclass(frozen=True)
class ClosureConfig:
    """How fast the coefficients follow, and how far they may go. Tensors `(runs, 1)` give each network of an ensemble its own."""

    rho_alpha: float | Tensor = 0.99
    """decay of the means behind `alpha`"""
    rho_mu: float | Tensor = 0.99
    """decay of the means behind `mu`"""
    margin: float | Tensor = 0.1
    """`|mu p| <= 1 - margin` (eps_d): a signal grows by 1/margin at most"""
    alpha_bound: float | Tensor = 0.99
    """`|alpha| <= alpha_bound`"""
    eps: float | None = None
    """added to both denominators; None: the smallest normal number, so that no scale of the loss is too small. 0 means the same: there is no 0/0"""

    def __post_init__(self) -> None:
        for name, low, high in (("rho_alpha", 0.0, 1.0), ("rho_mu", 0.0, 1.0), ("alpha_bound", 0.0, 1.0)):
            value = torch.as_tensor(getattr(self, name))
            if not bool(((value >= low) & (value < high)).all()):
                raise ConfigError(f"{name}={getattr(self, name)}; it lies in [0, 1)", **{name: getattr(self, name)})
        margin = torch.as_tensor(self.margin)
        if not bool(((margin > 0) & (margin <= 1)).all()):
            raise ConfigError(f"margin={self.margin}; it lies in (0, 1]: at 0 a signal could become infinite", margin=self.margin)
        if self.eps is not None and not 0 <= self.eps < float("inf"):
            raise ConfigError(f"eps={self.eps}; it is finite and not negative", eps=self.eps)


class ClosureStatistics:
    """`S`, `Q`, `N`, `M` and what follows from them, for the units of one layer.

    Source: Wang, Gao, Chen (2026): `alpha` is a regression of `dt[t]` on `dt[t-1]` without intercept, `mu` one of B on A, both exponentially
    weighted. Which rows make pairs, and what the denominators add, is our choice. Where slopes never change (a linear layer, a ReLU that stays on)
    A and B are differences of equal numbers, and `mu` is what rounding makes of them: bounded as ever, but not the same on every machine.
    """

    def __init__(self, units: Tensor, config: ClosureConfig) -> None:
        """Zeros of the shape, device and dtype of `units`."""
        self.config = config
        self.eps = max(config.eps or 0.0, torch.finfo(units.dtype).tiny)
        self.S, self.Q, self.N, self.M, self.alpha, self.mu = (torch.zeros_like(units) for _ in NAMES)
        self._rates = [1 - _like(rho, units) for rho in (config.rho_alpha, config.rho_mu)]
        self._bound = _like(config.alpha_bound, units)
        limit = 1 - _like(config.margin, units)
        self.limit = limit.unsqueeze(-1) if isinstance(limit, Tensor) else limit
        """`1 - margin`, shaped to broadcast against signals"""

    def observe_alpha(self, product: Tensor, square: Tensor, seen: Tensor | None) -> None:
        """Take in the means of `dt[t] dt[t-1]` and `dt[t-1]^2`; not where `seen` is false (None: everywhere true)."""
        self._average(self.S, self.Q, product, square, self._rates[0], seen)
        self._write(self.alpha, self.S, self.Q, seen)
        self.alpha.clamp_(-self._bound, self._bound)  # type: ignore[arg-type]

    def observe_mu(self, product: Tensor, square: Tensor, seen: Tensor | None) -> None:
        """Take in the means of `A B` and `A^2`, where `mu A = B` is what the closure asks for; not where `seen` is false."""
        self._average(self.N, self.M, product, square, self._rates[1], seen)
        self._write(self.mu, self.N, self.M, seen)

    def _write(self, ratio: Tensor, above: Tensor, below: Tensor, seen: Tensor | None) -> None:
        if seen is None:
            torch.div(above, below + self.eps, out=ratio)
        else:
            # A projected ratio is not that of its two means, so where nothing was seen it has to stay.
            ratio.copy_(torch.where(seen, above / (below + self.eps), ratio))

    @staticmethod
    def _average(above: Tensor, below: Tensor, product: Tensor, square: Tensor, rate: float | Tensor, seen: Tensor | None) -> None:
        if seen is not None:
            rate = torch.where(seen, rate, torch.zeros((), dtype=above.dtype, device=above.device))
        above.lerp_(product, rate)
        below.lerp_(square, rate)

    def __repr__(self) -> str:
        spans = ", ".join(f"{name} {_span(getattr(self, name))}" for name in ("alpha", "mu"))
        return f"ClosureStatistics({tuple(self.alpha.shape)}, {spans})"


def _span(values: Tensor) -> str:
    return f"{values.min().item():.3g} to {values.max().item():.3g}"


def _like(setting: float | Tensor, units: Tensor) -> float | Tensor:
    return setting.detach().to(units.device, units.dtype) if isinstance(setting, Tensor) else setting
