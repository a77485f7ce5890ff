"""Leaky integrate-and-fire units: membranes `v` that leak, and spikes `h` in {0, 1} where they pass the threshold.

    v[t] = leak v[t-1] + W h[t-1] + U u[t] + b - threshold h[t-1]      (reset by subtraction)
    h[t] = 1 where v[t] > threshold, else 0

Two things are not the gradient of this, and they are the same for every rule, backpropagation included: the derivative of a spike is the surrogate's,
and the reset is taken as a constant, so that no gradient goes through it. Signals are those of the membrane, `delta[t] = dL/dv[t]`, with
`delta[t] = d[t] + p[t] W^T delta[t+1] + leak delta[t+1]`.

Source: the model of G. Bellec et al., "A solution to the learning dilemma for recurrent networks of spiking neurons", 2020, without refractory
periods.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_cola.layers.activations import Activation
from pararnn_cola.layers.base import State
from pararnn_cola.layers.leaky import LeakyLayer
from pararnn_cola.layers.surrogates import surrogate_of


class SpikingLayer(LeakyLayer):
    """`state_size` spiking units; `surrogate` is "fast_sigmoid", "arctan", "triangle" or an Activation of the distance `v - threshold`.

    `steepness` narrows the surrogate derivative, `height` is its value at the threshold. `leak` is a number, or one for each unit `(state,)`.
    The state is `(h, v)`.

    With COLA this layer is experimental: its closure `d / (1 - leak alpha - mu p)` is ours, and its source says that success depends on the task.
    """

    def __init__(
        self,
        input_size: int,
        state_size: int,
        *,
        leak: float | Tensor = 0.9,
        threshold: float = 1.0,
        surrogate: str | Activation = "fast_sigmoid",
        steepness: float = 1.0,
        height: float = 1.0,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if not threshold > 0:
            raise ConfigError(f"threshold={threshold}; it is above zero, or a unit at rest would fire forever", threshold=threshold)
        activation = surrogate_of(surrogate, steepness, height)
        super().__init__(input_size, state_size, leak=leak, activation=activation, generator=generator, dtype=dtype, device=device)
        self.threshold = float(threshold)

    def forward(self, u: Tensor, state: State) -> tuple[State, Tensor]:
        spikes, membrane = state
        v = self.current(u, spikes) + self.leak * membrane - self.threshold * spikes.detach()
        return (self.activation.function(v - self.threshold), v), v

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, threshold={self.threshold}"

    def slope(self, preactivation: Tensor, state: State) -> Tensor:
        return self.activation.slope(preactivation - self.threshold, state[0])
