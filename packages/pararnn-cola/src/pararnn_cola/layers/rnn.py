"""The vanilla recurrent layer, `h[t] = phi(W h[t-1] + U u[t] + b)`: the network that COLA was derived for.

The class follows the core's cell protocol too, so that `ParaRNN(layer)` solves a whole sequence of it in parallel.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError, ShapeError
from pararnn.structures import Dense
from pararnn_cola.layers.activations import Activation, activation_of
from pararnn_cola.layers.base import Layer, Moment, State


class RNNLayer(Layer):
    """`state_size` units, each seeing all others and `input_size` inputs.

    Parameters are `weight_hh` `(state, state)` with entries of variance 1/state, `weight_ih` `(state, input)` of variance 1/input, and `bias`
    `(state,)`, zero. `near_critical` rescales `weight_hh`.
    """

    gradient_names = ("weight_hh", "weight_ih", "bias")
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
        super().__init__()
        if input_size < 1 or state_size < 1:
            raise ConfigError(f"input_size={input_size} and state_size={state_size}; both are at least 1", sizes=(input_size, state_size))
        self.input_size, self.state_size = input_size, state_size
        self.activation = activation_of(activation)
        # Drawn in float32 on the CPU whatever follows, so that a seed means the same weights in every dtype and on every device.
        recurrent = torch.randn(state_size, state_size, generator=generator, dtype=torch.float32, device="cpu") / math.sqrt(state_size)
        feeding = torch.randn(state_size, input_size, generator=generator, dtype=torch.float32, device="cpu") / math.sqrt(input_size)
        dtype = dtype or torch.get_default_dtype()
        self.weight_hh = nn.Parameter(recurrent.to(device, dtype))
        self.weight_ih = nn.Parameter(feeding.to(device, dtype))
        self.bias = nn.Parameter(torch.zeros(state_size, dtype=dtype, device=device))

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

    def zero_state(self, *batch: int) -> State:
        return (self.weight_hh.new_zeros(*batch, self.state_size),)

    def forward(self, u: Tensor, state: State) -> tuple[State, Tensor]:
        if u.shape[-1] != self.input_size:
            raise ShapeError(f"an input of {self.input_size} features was expected, got shape {tuple(u.shape)}", shape=tuple(u.shape))
        (previous,) = state
        if self.bias.dim() == 1:
            x = torch.addmm(torch.addmm(self.bias, u, self.weight_ih.mT), previous, self.weight_hh.mT)
        else:
            x = torch.baddbmm(torch.baddbmm(self.bias.unsqueeze(-2), u, self.weight_ih.mT), previous, self.weight_hh.mT)
        return (self.activation.function(x),), x

    def slope(self, preactivation: Tensor, state: State) -> Tensor:
        return self.activation.slope(preactivation, state[0])

    def signal_to_input(self, signal: Tensor, moment: Moment) -> Tensor:
        return signal @ self.weight_ih

    def signal_to_previous(self, signal: Tensor, moment: Moment) -> Tensor:
        return signal @ self.weight_hh

    def add_gradients(self, into: dict[str, Tensor], signal: Tensor, output_gradient: Tensor, moment: Moment, scale: float) -> None:
        transposed = signal.mT
        for name, seen in (("weight_hh", moment.previous), ("weight_ih", moment.inputs)):
            if name in into:
                add_product(into[name], transposed, seen, scale)
        if "bias" in into:
            into["bias"].add_(signal.sum(-2), alpha=scale)

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


def add_product(buffer: Tensor, signal: Tensor, seen: Tensor, scale: float) -> None:
    """Add `scale * signal @ seen` to `buffer`, in its own dtype: a float32 buffer of a bfloat16 network sums what bfloat16 could not."""
    if buffer.dtype != seen.dtype:
        buffer.add_(signal.to(buffer.dtype) @ seen.to(buffer.dtype), alpha=scale)
    elif buffer.dim() == 2:
        buffer.addmm_(signal, seen, alpha=scale)
    else:
        buffer.baddbmm_(signal, seen, alpha=scale)
