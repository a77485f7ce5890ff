"""Weights that a small network gives: hypernetworks of time."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError
from pararnn_nanode.paths.base import Span
from pararnn_nanode.paths.knots import locate
from pararnn_nanode.paths.linear import LinearPath, at_least
from pararnn_nanode.paths.precision import precise

VARIANTS = ("mlp", "recurrent")


class HyperPath(LinearPath):
    """`W(t) = C_0 + sum over j of z_j(t) C_j` with features `z(t)` that are learned too.

    * "mlp": `z(t) = tanh(rate * tau + shift)`, so that `W` is a network of one hidden layer of the time; `tau` runs from -1 to 1 over the span.
    * "recurrent": `z` has an equation of its own, `dz/ds = tanh(mix z + rate * s + shift)`, `s` from 0 to 1 over the span, walked with `steps` steps
      of the classical Runge-Kutta method and read between them by Hermite's cubics. It stays as it is outside the span.

    The paper tried two hypernetworks and saw no gain over weights that do not move; what exactly they were is not known to us, so these two follow
    its words only. The parameters of the small network are not counted in `n_matrices`.

    Args:
        shape: shape of the weights.
        hidden: how many features; `hidden + 1` columns.
        variant: "mlp" or "recurrent".
        steps: of the recurrent variant over the span.

    Source: Davis et al. (2020), arXiv 2005.01906, hypernetworks; weights with an equation of their own: Zhang et al. (2019), arXiv 1906.04596.
    """

    def __init__(
        self,
        shape: tuple[int, ...] | int,
        hidden: int,
        *,
        variant: Literal["mlp", "recurrent"] = "mlp",
        steps: int = 16,
        span: Span = (0.0, 1.0),
        gain: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if variant not in VARIANTS:
            raise ConfigError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
        super().__init__(shape, at_least(1, "hidden", hidden) + 1, span=span, gain=gain, device=device, dtype=dtype)
        self.variant = variant
        self.steps = at_least(1, "steps", steps)
        real = self.coefficients.dtype.to_real()

        def empty(*size: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*size, device=device, dtype=real))

        self.rate = empty(hidden)
        self.shift = empty(hidden)
        self.mix = empty(hidden, hidden) if variant == "recurrent" else None
        self.first = empty(hidden) if variant == "recurrent" else None
        self._draw_network()

    @property
    def hidden(self) -> int:
        """How many features there are."""
        return self.columns - 1

    def rank(self, times: Tensor, anchors: Tensor | None = None) -> int:
        """The number of columns, or of different times where it is less; the features are learned, so that how alike they look now says nothing."""
        return min(self.columns, int(precise(times.detach()).unique().numel()))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self._draw_network()

    def basis(self, times: Tensor, anchors: Tensor) -> Tensor:
        work = torch.promote_types(self.rate.dtype, torch.float32)
        features = self._features(times, work) if self.mix is None else self._walked(times, work)
        return torch.cat([torch.ones_like(features[..., :1]), features], -1)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, variant={self.variant!r}"

    def _draw_network(self) -> None:
        with torch.no_grad():
            if self.mix is None or self.first is None:
                # Each feature changes most at some time inside the span.
                self.rate.normal_(std=3.0)
                self.shift.uniform_(-1.0, 1.0).mul_(self.rate)
            else:
                for parameter in (self.rate, self.shift, self.first):
                    parameter.normal_()
                self.mix.normal_(std=1 / math.sqrt(self.hidden))

    def _features(self, times: Tensor, work: torch.dtype) -> Tensor:
        start, end = self.span
        tau = (2 * (times - start) / (end - start) - 1).to(work).to(self.rate.device).unsqueeze(-1)
        return torch.tanh(tau * self.rate.to(work) + self.shift.to(work))

    def _walked(self, times: Tensor, work: torch.dtype) -> Tensor:
        index, inside = locate(times, self.span, self.steps)
        index = index.to(self.rate.device).reshape(-1)
        z, slopes = self._walk(work)
        h = 1 / self.steps
        s = inside.reshape(-1, 1)
        weights = ((1 + 2 * s) * (1 - s) ** 2, s**2 * (3 - 2 * s), h * s * (1 - s) ** 2, h * s**2 * (s - 1))
        ends = (z[index], z[index + 1], slopes[index], slopes[index + 1])
        total = torch.stack([weight.to(work).to(z.device) * end for weight, end in zip(weights, ends, strict=True)]).sum(0)
        return total.reshape(*times.shape, self.hidden)

    def _walk(self, work: torch.dtype) -> tuple[Tensor, Tensor]:
        if self.mix is None or self.first is None:
            raise ConfigError(f"the variant {self.variant!r} has no equation to walk")
        mix, rate, shift, z = (parameter.to(work) for parameter in (self.mix, self.rate, self.shift, self.first))
        h = 1 / self.steps

        def slope(place: float, z: Tensor) -> Tensor:
            return torch.tanh(mix @ z + place * rate + shift)

        states, slopes = [z], [slope(0.0, z)]
        for k in range(self.steps):
            s = k * h
            k1 = slopes[-1]
            k2 = slope(s + h / 2, z + h / 2 * k1)
            k3 = slope(s + h / 2, z + h / 2 * k2)
            k4 = slope(s + h, z + h * k3)
            z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            states.append(z)
            slopes.append(slope(s + h, z))
        return torch.stack(states), torch.stack(slopes)
