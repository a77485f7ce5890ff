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
    """added to both denominators; None: the smallest normal number, so that no scale of the loss is too small"""

    def __post_init__(self) -> None:
        for name, low, high in (("rho_alpha", 0.0, 1.0), ("rho_mu", 0.0, 1.0), ("alpha_bound", 0.0, 1.0)):
            value = torch.as_tensor(getattr(self, name))
            if not bool(((value >= low) & (value < high)).all()):
                raise ConfigError(f"{name}={getattr(self, name)}; it lies in [0, 1)", **{name: getattr(self, name)})
        margin = torch.as_tensor(self.margin)
        if not bool(((margin > 0) & (margin <= 1)).all()):
            raise ConfigError(f"margin={self.margin}; it lies in (0, 1]: at 0 a signal could become infinite", margin=self.margin)
        if self.eps is not None and not self.eps >= 0:
            raise ConfigError(f"eps={self.eps}; it is not negative", eps=self.eps)


class ClosureStatistics:
    """`S`, `Q`, `N`, `M` and what follows from them, for the units of one layer (Wang, Gao, Chen 2026)."""

    def __init__(self, units: Tensor, config: ClosureConfig) -> None:
        """Zeros of the shape, device and dtype of `units`."""
        self.config = config
        self.eps = torch.finfo(units.dtype).tiny if config.eps is None else config.eps
        self.S, self.Q, self.N, self.M, self.alpha, self.mu = (torch.zeros_like(units) for _ in NAMES)

    def observe_alpha(self, product: Tensor, square: Tensor, seen: Tensor | None) -> None:
        """Take in the means of `dt[t] dt[t-1]` and `dt[t-1]^2`; not where `seen` is false (None: everywhere true)."""
        self._average(self.S, product, self.config.rho_alpha, seen)
        self._average(self.Q, square, self.config.rho_alpha, seen)
        bound = self.config.alpha_bound
        torch.div(self.S, self.Q + self.eps, out=self.alpha)
        self.alpha.clamp_(-bound, bound)  # type: ignore[arg-type]

    def observe_mu(self, product: Tensor, square: Tensor, seen: Tensor | None) -> None:
        """Take in the means of `A B` and `A^2`, where `mu A = B` is what the closure asks for."""
        self._average(self.N, product, self.config.rho_mu, seen)
        self._average(self.M, square, self.config.rho_mu, seen)
        torch.div(self.N, self.M + self.eps, out=self.mu)

    @staticmethod
    def _average(mean: Tensor, value: Tensor, rho: float | Tensor, seen: Tensor | None) -> None:
        rate = 1 - rho
        if seen is not None:
            rate = torch.where(seen, rate, torch.zeros((), dtype=mean.dtype, device=mean.device))
        mean.lerp_(value, rate)
