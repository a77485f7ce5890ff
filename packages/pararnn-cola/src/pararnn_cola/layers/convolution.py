"""A recurrent layer of feature maps, `x[t] = K * h[t-1] + Kin * u[t] + b`, `h[t] = phi(x[t])`, where `*` is a convolution that keeps the size.

Signals are maps too. What a rule knows of a unit, such as COLA's coefficients, is kept once a channel and pooled over batch and positions, as the
channel's weights are the same everywhere; `pool_positions=False` keeps it for each position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import grad

from pararnn.errors import ConfigError, ShapeError
from pararnn_cola.layers.activations import Activation, activation_of
from pararnn_cola.layers.base import Layer, Moment, State, rows_like
from pararnn_cola.layers.krylov import largest_singular_value

_CONVOLUTIONS = {
    1: (nn.functional.conv1d, nn.functional.conv_transpose1d, grad.conv1d_weight),
    2: (nn.functional.conv2d, nn.functional.conv_transpose2d, grad.conv2d_weight),
}


class ConvLayer(Layer):
    """`channels` maps of `size`, `(height, width)` or `(length,)`, fed by `in_channels` maps of the same size; outside of them are zeros.

    Parameters are `weight_hh` `(channels, channels, *kernel)` and `weight_ih` `(channels, in_channels, *kernel)`, each entry of variance one over the
    number of inputs it is summed with, and `bias` `(channels,)`, zero. `kernel_size` is odd. Inputs are `(batch, in_channels, *size)`.
    """

    gradient_names = ("weight_hh", "weight_ih", "bias")

    def __init__(
        self,
        in_channels: int,
        channels: int,
        kernel_size: int,
        *,
        size: Sequence[int],
        activation: str | Activation = "tanh",
        pool_positions: bool = True,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if in_channels < 1 or channels < 1:
            raise ConfigError(f"in_channels={in_channels} and channels={channels}; both are at least 1", sizes=(in_channels, channels))
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ConfigError(f"kernel_size={kernel_size}; an odd one has a middle, which maps that keep their size need", kernel_size=kernel_size)
        if len(size) not in _CONVOLUTIONS or min(size) < 1:
            raise ConfigError(f"size={tuple(size)}; maps have the size (length,) or (height, width), each at least 1", size=tuple(size))
        self.in_channels, self.channels, self.kernel_size, self.size = in_channels, channels, kernel_size, tuple(size)
        self.unit_dims = 1 + len(self.size)
        self.pool_positions = pool_positions
        self.activation = activation_of(activation)
        kernel = (kernel_size,) * len(self.size)
        area = math.prod(kernel)
        # Drawn in float32 on the CPU whatever follows, so that a seed means the same weights in every dtype and on every device.
        recurrent = torch.randn(channels, channels, *kernel, generator=generator, dtype=torch.float32, device="cpu") / math.sqrt(channels * area)
        feeding = torch.randn(channels, in_channels, *kernel, generator=generator, dtype=torch.float32, device="cpu") / math.sqrt(in_channels * area)
        dtype = dtype or torch.get_default_dtype()
        self.weight_hh = nn.Parameter(recurrent.to(device, dtype))
        self.weight_ih = nn.Parameter(feeding.to(device, dtype))
        self.bias = nn.Parameter(torch.zeros(channels, dtype=dtype, device=device))

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.in_channels, *self.size)

    def zero_state(self, *batch: int) -> State:
        if len(batch) != 1 or self.bias.dim() != 1:
            raise ShapeError(
                f"{type(self).__name__} has no ensembles, but was asked for samples of shape {batch} with parameters of shape "
                f"{tuple(self.weight_hh.shape)}; train its networks one after another",
                batch=batch,
            )
        return (self.weight_hh.new_zeros(*batch, self.channels, *self.size),)

    def forward(self, u: Tensor, state: State) -> tuple[State, Tensor]:
        expected = (self.in_channels, *self.size)
        if u.shape[1:] != expected or self.bias.dim() != 1:
            raise ShapeError(
                f"inputs (batch, {', '.join(map(str, expected))}) were expected, got shape {tuple(u.shape)}; there are no ensembles of this layer",
                shape=tuple(u.shape),
            )
        (previous,) = state
        convolve, _, _ = _CONVOLUTIONS[len(self.size)]
        x = convolve(u, self.weight_ih, self.bias, padding=self.kernel_size // 2)
        x = x + convolve(previous, self.weight_hh, padding=self.kernel_size // 2)
        return (self.activation.function(x),), x

    def slope(self, preactivation: Tensor, state: State) -> Tensor:
        return self.activation.slope(preactivation, state[0])

    def signal_to_input(self, signal: Tensor, moment: Moment) -> Tensor:
        return self._transposed(signal, self.weight_ih)

    def signal_to_previous(self, signal: Tensor, moment: Moment) -> Tensor:
        return self._transposed(signal, self.weight_hh)

    def _transposed(self, signal: Tensor, weight: Tensor) -> Tensor:
        _, transpose, _ = _CONVOLUTIONS[len(self.size)]
        return transpose(signal, weight, padding=self.kernel_size // 2)

    def add_gradients(self, into: dict[str, Tensor], signal: Tensor, output_gradient: Tensor, moment: Moment, scale: float) -> None:
        _, _, weight_gradient = _CONVOLUTIONS[len(self.size)]
        for name, seen in (("weight_hh", moment.previous), ("weight_ih", moment.inputs)):
            if name in into:
                buffer = into[name]
                wide = seen.to(buffer.dtype), signal.to(buffer.dtype)
                gradient = weight_gradient(wide[0], buffer.shape, wide[1], padding=self.kernel_size // 2)
                buffer.add_(gradient, alpha=scale)
        if "bias" in into:
            into["bias"].add_(signal.sum([0, *range(2, signal.dim())], dtype=into["bias"].dtype), alpha=scale)

    def _pooled(self, values: Tensor) -> list[int]:
        return [0, *range(2, values.dim())] if self.pool_positions else [0]

    def pool(self, values: Tensor, rows: Tensor | None = None) -> Tensor:
        mean = self._pooled(values)
        if rows is None:
            return values.mean(mean)
        live = rows_like(rows, values, self.unit_dims)
        kept = torch.where(live, values, torch.zeros((), dtype=values.dtype, device=values.device))
        positions = math.prod(self.size) if self.pool_positions else 1
        return kept.sum(mean) / (rows.sum() * positions).clamp_min(1)

    def spread(self, statistic: Tensor) -> Tensor:
        return statistic.reshape(-1, *(1,) * len(self.size)) if self.pool_positions else statistic

    def peak(self, values: Tensor) -> Tensor:
        return values.amax(self._pooled(values))

    @torch.no_grad()
    def operator_norm(self) -> Tensor:
        """The largest singular value of the convolution as a map of all of `h`, at this size; that of the reshaped kernel is another number."""
        weight = self.weight_hh.detach().double()
        convolve, transpose, _ = _CONVOLUTIONS[len(self.size)]
        padding = self.kernel_size // 2
        # Random, and the same every time, so that no symmetry of the kernel hides its largest direction from it.
        start = torch.randn(1, self.channels, *self.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(weight.device)
        norm = largest_singular_value(
            lambda h: convolve(h, weight, padding=padding), lambda signal: transpose(signal, weight, padding=padding), start
        )
        return norm.to(self.weight_hh.dtype)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.channels}, kernel_size={self.kernel_size}, size={self.size}, activation={self.activation.name}"
