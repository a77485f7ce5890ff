"""What layers with full matrices share: the parameters, the current that they give, and the formulas of a rule in closed form."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError, ShapeError
from pararnn_cola.layers.base import Layer, Moment, State


class DenseLayer(Layer):
    """`state_size` units whose current is `W h[t-1] + U u[t] + b`; `gates` such currents a unit, one below the other.

    Parameters are `weight_hh` `(gates * state, state)` with entries of variance 1/state, `weight_ih` `(gates * state, input)` of variance 1/input,
    and `bias` `(gates * state,)`, zero.
    """

    gradient_names: tuple[str, ...] = ("weight_hh", "weight_ih", "bias")
    eligible_names: tuple[str, ...] = ("weight_hh", "weight_ih", "bias")

    def __init__(
        self,
        input_size: int,
        state_size: int,
        *,
        gates: int = 1,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if input_size < 1 or state_size < 1:
            raise ConfigError(f"input_size={input_size} and state_size={state_size}; both are at least 1", sizes=(input_size, state_size))
        self.input_size, self.state_size = input_size, state_size
        # Drawn in float32 on the CPU whatever follows, so that a seed means the same weights in every dtype and on every device.
        recurrent = torch.randn(gates * state_size, state_size, generator=generator, dtype=torch.float32, device="cpu") / math.sqrt(state_size)
        feeding = torch.randn(gates * state_size, input_size, generator=generator, dtype=torch.float32, device="cpu") / math.sqrt(input_size)
        dtype = dtype or torch.get_default_dtype()
        self.weight_hh = nn.Parameter(recurrent.to(device, dtype))
        self.weight_ih = nn.Parameter(feeding.to(device, dtype))
        self.bias = nn.Parameter(torch.zeros(gates * state_size, dtype=dtype, device=device))

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.input_size,)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.state_size}"

    def zero_state(self, *batch: int) -> State:
        return (self.weight_hh.new_zeros(*batch, self.state_size),)

    def current(self, u: Tensor, previous: Tensor) -> Tensor:
        """`W previous + U u + b`, `(*lead, batch, gates * state)`."""
        if u.shape[-1] != self.input_size:
            raise ShapeError(f"an input of {self.input_size} features was expected, got shape {tuple(u.shape)}", shape=tuple(u.shape))
        if self.bias.dim() == 1:
            return torch.addmm(torch.addmm(self.bias, u, self.weight_ih.mT), previous, self.weight_hh.mT)
        return torch.baddbmm(torch.baddbmm(self.bias.unsqueeze(-2), u, self.weight_ih.mT), previous, self.weight_hh.mT)

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
            into["bias"].add_(signal.sum(-2, dtype=into["bias"].dtype), alpha=scale)

    def eligible(self, moment: Moment) -> tuple[Tensor, ...]:
        return moment.previous, moment.inputs, torch.ones_like(moment.inputs[..., :1])

    def own_path(self, moment: Moment) -> Tensor:
        return self.weight_hh.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)


def add_product(buffer: Tensor, signal: Tensor, seen: Tensor, scale: float) -> None:
    """Add `scale * signal @ seen` to `buffer`, in its own dtype: a float32 buffer of a bfloat16 network sums what bfloat16 could not."""
    if buffer.dtype != seen.dtype:
        buffer.add_(signal.to(buffer.dtype) @ seen.to(buffer.dtype), alpha=scale)
    elif buffer.dim() == 2:
        buffer.addmm_(signal, seen, alpha=scale)
    else:
        buffer.baddbmm_(signal, seen, alpha=scale)
