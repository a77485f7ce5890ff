"""Spikes that can be learned through: a step function forward, a bump around the threshold for its derivative.

The pretence is made inside autograd, so that backpropagation and the rules in closed form follow the same derivative. All bumps are 1 at the
threshold; `steepness` narrows them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_cola.layers.activations import Activation


def _fast_sigmoid(scaled: Tensor) -> Tensor:
    """The derivative of `z / (1 + |z|)` (Zenke, Ganguli 2018)."""
    return (1 + scaled.abs()).square().reciprocal()


def _arctan(scaled: Tensor) -> Tensor:
    """The derivative of `arctan(pi z / 2) 2 / pi` (Fang et al. 2021)."""
    return (1 + (math.pi / 2 * scaled).square()).reciprocal()


def _triangle(scaled: Tensor) -> Tensor:
    """A triangle from -1 to 1 (Bellec et al. 2020)."""
    return (1 - scaled.abs()).clamp_min(0)


BUMPS: dict[str, Callable[[Tensor], Tensor]] = {"fast_sigmoid": _fast_sigmoid, "arctan": _arctan, "triangle": _triangle}


# Objects instead of closures, so that equal layers have equal activations and can be pickled.
@dataclass(frozen=True)
class _Slope:
    name: str
    steepness: float
    height: float

    def __call__(self, distance: Tensor, spikes: Tensor | None = None) -> Tensor:
        return self.height * BUMPS[self.name](self.steepness * distance)


@dataclass(frozen=True)
class _Fire:
    slope: _Slope

    def __call__(self, distance: Tensor) -> Tensor:
        spikes: Tensor = _Spike.apply(distance, self.slope)
        return spikes


class _Spike(torch.autograd.Function):
    """1 above zero, else 0, with `slope` of the distance for a derivative; NaN stays, for as a 0 it would hide where it is noticed."""

    generate_vmap_rule = True

    @staticmethod
    def forward(distance: Tensor, slope: _Slope) -> Tensor:
        return torch.where(distance.isnan(), distance, (distance > 0).to(distance.dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, _Slope], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])
        ctx.slope = inputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (distance,) = ctx.saved_tensors
        return gradients[0] * ctx.slope(distance), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        (distance,) = ctx.saved_tensors
        product: Tensor = tangents[0] * ctx.slope(distance)
        return product


def surrogate_of(choice: str | Activation, steepness: float = 1.0, height: float = 1.0) -> Activation:
    """The spike function of the distance to the threshold with the derivative `height * bump(steepness * distance)`; an Activation stays as it is.

    Raises:
        ConfigError: there is no bump of that name, or `steepness` or `height` is not above zero.
    """
    if isinstance(choice, Activation):
        return choice
    if choice not in BUMPS:
        raise ConfigError(f"surrogate={choice!r} is none of {', '.join(BUMPS)}; give one of them, or an Activation of your own", surrogate=choice)
    if not (steepness > 0 and height > 0):
        raise ConfigError(f"steepness={steepness} and height={height} of a surrogate are above zero", steepness=steepness, height=height)
    slope = _Slope(choice, steepness, height)
    return Activation(choice, _Fire(slope), slope)
