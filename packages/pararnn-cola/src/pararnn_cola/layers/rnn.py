"""The vanilla recurrent layer, `h[t] = phi(W h[t-1] + U u[t] + b)`: the network that COLA was derived for.

The class follows the core's cell protocol too, so that `ParaRNN(layer)` solves a whole sequence of it in parallel.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError
from pararnn.structures import Dense
from pararnn_cola.layers.activations import Activation, activation_of
from pararnn_cola.layers.base import State
from pararnn_cola.layers.dense import DenseLayer


class RNNLayer(DenseLayer):
    """`state_size` units, each seeing all others and `input_size` inputs.

    Parameters are `weight_hh` `(state, state)` with entries of variance 1/state, `weight_ih` `(state, input)` of variance 1/input, and `bias`
    `(state,)`, zero. `near_critical` rescales `weight_hh`.
    """

    structure = Dense

    def __init__(
        self,
        input_size: int,
        state_size: int,
        *,
        activation: str | Activation = "tanh",
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(input_size, state_size, generator=generator, dtype=dtype, device=device)
        self.activation = activation_of(activation)

    @classmethod
    def from_torch(cls, source: nn.RNN | nn.RNNCell, layer: int = 0) -> Self:
        """The layer with the weights of `source`, whose two biases are added up."""
        suffix = f"_l{layer}" if isinstance(source, nn.RNN) else ""
        if isinstance(source, nn.RNN) and source.bidirectional:
            raise ConfigError("a bidirectional network reads the future, so it cannot run online; give one with bidirectional=False")
        feeding = getattr(source, f"weight_ih{suffix}").detach()
        mine = cls(feeding.shape[1], source.hidden_size, activation=source.nonlinearity, dtype=feeding.dtype, device=feeding.device)
        with torch.no_grad():
            mine.weight_ih.copy_(feeding)
            mine.weight_hh.copy_(getattr(source, f"weight_hh{suffix}"))
            if source.bias:
                mine.bias.copy_(getattr(source, f"bias_ih{suffix}") + getattr(source, f"bias_hh{suffix}"))
        return mine

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation.name}"

    def forward(self, u: Tensor, state: State) -> tuple[State, Tensor]:
        (previous,) = state
        x = self.current(u, previous)
        return (self.activation.function(x),), x

    def slope(self, preactivation: Tensor, state: State) -> Tensor:
        return self.activation.slope(preactivation, state[0])

    def initial_state(self, batch: int) -> Tensor:
        return self.zero_state(batch)[0]

    def drive(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight_ih, self.bias)

    def step(self, state: Tensor, drive: Tensor) -> Tensor:
        return self.activation.function(nn.functional.linear(state, self.weight_hh) + drive)

    def jacobian(self, state: Tensor, drive: Tensor) -> Dense:
        """`diag(p) W`, `(*lead, state, state)`."""
        x = nn.functional.linear(state, self.weight_hh) + drive
        return Dense(self.activation.slope(x, self.activation.function(x)).unsqueeze(-1) * self.weight_hh)

    def readout(self, states: Tensor) -> Tensor:
        return states
