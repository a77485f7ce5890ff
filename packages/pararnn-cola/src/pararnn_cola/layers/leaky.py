"""A layer of leaky units, `x[t] = leak x[t-1] + W h[t-1] + U u[t] + b`, `h[t] = phi(x[t])`.

Its units remember by themselves, so signals have a second way back in time: `delta[t] = d[t] + p[t] W^T delta[t+1] + leak delta[t+1]`. Where COLA
meets a leak, it closes that recursion by `d / (1 - leak alpha - mu p)`, which is ours, not its source's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.errors import ConfigError, DTypeError, ShapeError
from pararnn_cola.layers.activations import Activation, activation_of
from pararnn_cola.layers.base import Moment, State
from pararnn_cola.layers.dense import DenseLayer


class LeakyLayer(DenseLayer):
    """`state_size` leaky units; `leak` in [0, 1] is the share of `x` left after a step: a number, or a tensor `(state,)` with one for each unit.

    A tensor is kept as the buffer `leak`; it is not learned. The state is `(h, x)`.
    """

    leak: float | Tensor

    def __init__(
        self,
        input_size: int,
        state_size: int,
        *,
        leak: float | Tensor = 0.9,
        activation: str | Activation = "tanh",
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(input_size, state_size, generator=generator, dtype=dtype, device=device)
        self.activation = activation_of(activation)
        if isinstance(leak, Tensor):
            _check_leak(leak, state_size)
            self.register_buffer("leak", leak.detach().to(self.bias.device, self.bias.dtype, copy=True))
        elif not 0 <= leak <= 1:
            raise ConfigError(f"leak={leak}; the share of x that is left after a step lies in [0, 1]", leak=leak)
        else:
            self.leak = float(leak)

    def zero_state(self, *batch: int) -> State:
        return (*super().zero_state(*batch), *super().zero_state(*batch))

    def forward(self, u: Tensor, state: State) -> tuple[State, Tensor]:
        previous, x = state
        x = self.current(u, previous) + self.leak * x
        h = self.activation.function(x)
        return (h, x), x

    def slope(self, preactivation: Tensor, state: State) -> Tensor:
        return self.activation.slope(preactivation, state[0])

    def observe(self, u: Tensor, state: State) -> tuple[State, Moment]:
        following, x = self(u, state)
        # Of the full shape, so that rules may mask its rows as they do those of any signal.
        leak = self.leak.expand_as(x).contiguous() if isinstance(self.leak, Tensor) else self.leak
        return following, Moment(u, state[0], following[0], self.slope(x, following), leak)

    def extra_repr(self) -> str:
        shown = "per unit" if isinstance(self.leak, Tensor) else self.leak
        return f"{self.input_size}, {self.state_size}, leak={shown}, activation={self.activation.name}"


def _check_leak(leak: Tensor, state_size: int) -> None:
    """Raise unless `leak` is one number in [0, 1] for each unit."""
    if not leak.is_floating_point():
        raise DTypeError(f"leaks are floating-point numbers, got {leak.dtype}", dtype=leak.dtype)
    if leak.shape != (state_size,):
        raise ShapeError(f"leak has shape {tuple(leak.shape)}; one a unit is ({state_size},), or give a number", shape=tuple(leak.shape))
    if not bool(((leak >= 0) & (leak <= 1)).all()):
        low, high = float(leak.min()), float(leak.max())
        raise ConfigError(f"leaks from {low} to {high}; the share of x that is left after a step lies in [0, 1]", low=low, high=high)
