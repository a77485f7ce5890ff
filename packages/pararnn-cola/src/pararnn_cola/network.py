"""A network that can learn online: recurrent layers, one above the other, and a linear readout."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Self, TypeAlias

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError, ShapeError
from pararnn_cola.layers.activations import Activation
from pararnn_cola.layers.base import Layer, State
from pararnn_cola.layers.dense import add_product
from pararnn_cola.layers.rnn import RNNLayer

States: TypeAlias = tuple[State, ...]
"""One state a layer, lowest first."""


class Readout(nn.Module):
    """`o = V h + c` with `weight` V `(output, features)` and `bias` c `(output,)`; maps (`unit_dims` above 1) are flattened before."""

    gradient_names = ("weight", "bias")

    def __init__(
        self,
        features: int,
        output_size: int,
        *,
        unit_dims: int = 1,
        scale: float = 1.0,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if features < 1 or output_size < 1:
            raise ConfigError(f"features={features} and output_size={output_size}; both are at least 1", sizes=(features, output_size))
        self.features, self.output_size, self.unit_dims = features, output_size, unit_dims
        dtype = dtype or torch.get_default_dtype()
        weight = scale * torch.randn(output_size, features, generator=generator, dtype=torch.float32, device="cpu") / math.sqrt(features)
        self.weight = nn.Parameter(weight.to(device, dtype))
        self.bias = nn.Parameter(torch.zeros(output_size, dtype=dtype, device=device))

    def extra_repr(self) -> str:
        maps = f", unit_dims={self.unit_dims}" if self.unit_dims > 1 else ""
        return f"{self.features}, {self.output_size}{maps}"

    def forward(self, h: Tensor) -> Tensor:
        flat = h.flatten(-self.unit_dims) if self.unit_dims > 1 else h
        if self.bias.dim() == 1:
            return nn.functional.linear(flat, self.weight, self.bias)
        return torch.baddbmm(self.bias.unsqueeze(-2), flat, self.weight.mT)

    def to_output(self, error: Tensor, h: Tensor) -> Tensor:
        """`V^T error`, the gradient of the loss by `h`, in the shape of `h`."""
        return (error @ self.weight).view(h.shape)

    def add_gradients(self, into: dict[str, Tensor], error: Tensor, h: Tensor, scale: float) -> None:
        """Add `scale` times the exact gradients by `weight` and `bias`, summed over the batch."""
        if "weight" in into:
            add_product(into["weight"], error.mT, h.flatten(-self.unit_dims) if self.unit_dims > 1 else h, scale)
        if "bias" in into:
            into["bias"].add_(error.sum(-2), alpha=scale)


class Network(nn.Module):
    """`layers`, each fed by the one below, and a `readout` of the top one; the modules detach nothing, so backpropagation works as ever.

    Called with inputs `(batch, time, *input)` it gives outputs `(batch, time, output)` and the states after them.

    Raises:
        ShapeError: a layer or the readout takes another number of features than what is below it gives.
        ConfigError: something is no layer or no readout of this package, or the readout takes maps for vectors.
    """

    def __init__(self, layers: Layer | Sequence[Layer], readout: Readout) -> None:
        super().__init__()
        chosen = [layers] if isinstance(layers, Layer) else list(layers)
        if not chosen:
            raise ConfigError("a network has at least one recurrent layer, got none")
        strangers = [type(layer).__name__ for layer in chosen if not isinstance(layer, Layer)]
        if strangers or not isinstance(readout, Readout):
            found = f"layers of type {', '.join(strangers)}" if strangers else f"a readout of type {type(readout).__name__}"
            raise ConfigError(f"a network has Layers of this package and a Readout, got {found}; CellLayer(cell) makes a layer of a cell", got=found)
        self.layers = nn.ModuleList(chosen)
        self.readout = readout
        _check_fit(self.recurrent, readout)

    @classmethod
    def rnn(
        cls,
        input_size: int,
        state_size: int,
        output_size: int,
        *,
        num_layers: int = 1,
        activation: str | Activation = "tanh",
        readout_scale: float = 1.0,
        seed: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """Vanilla layers with a readout; the same `seed` gives the same weights anywhere.

        It stands for `generator=torch.Generator().manual_seed(seed)`, which layers and `Readout` take one after the other.
        """
        if num_layers < 1:
            raise ConfigError(f"num_layers={num_layers}; a network has at least one recurrent layer", num_layers=num_layers)
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        sizes = [input_size, *[state_size] * num_layers]
        layers = [
            RNNLayer(below, above, activation=activation, generator=generator, dtype=dtype, device=device)
            for below, above in itertools.pairwise(sizes)
        ]
        return cls(layers, Readout(state_size, output_size, scale=readout_scale, generator=generator, dtype=dtype, device=device))

    @property
    def recurrent(self) -> tuple[Layer, ...]:
        """The layers, lowest first, with their type."""
        return tuple(layer for layer in self.layers if isinstance(layer, Layer))

    @property
    def lead(self) -> tuple[int, ...]:
        """`(runs,)` in an ensemble of networks that learn side by side, else `()`."""
        return tuple(self.readout.bias.shape[:-1])

    def zero_state(self, *batch: int) -> States:
        """The states before the first step, for samples of shape `batch`."""
        return tuple(layer.zero_state(*batch) for layer in self.recurrent)

    def advance(self, u: Tensor, states: States) -> tuple[Tensor, States]:
        """The output `(batch, output)` and the next states for one step's inputs `(batch, *input)`, differentiable."""
        following = []
        for layer, state in zip(self.recurrent, states, strict=True):
            state, _ = layer(u, state)
            following.append(state)
            u = state[0]
        return self.readout(u), tuple(following)

    def forward(self, x: Tensor, states: States | None = None) -> tuple[Tensor, States]:
        if x.dim() < 3 or x.shape[1] == 0:
            raise ShapeError(f"inputs (batch, time, features) with at least one step were expected, got {tuple(x.shape)}", shape=tuple(x.shape))
        states = self.zero_state(x.shape[0]) if states is None else states
        outputs = []
        for u in x.unbind(1):
            output, states = self.advance(u, states)
            outputs.append(output)
        return torch.stack(outputs, 1), states


@torch.no_grad()
def _check_fit(layers: Sequence[Layer], readout: Readout) -> None:
    lead = readout.bias.dim() - 1
    below: tuple[int, ...] | None = None
    for index, layer in enumerate(layers):
        expected = layer.input_shape
        if below is not None and expected is not None and below != expected:
            raise ShapeError(
                f"layer {index} ({type(layer).__name__}) takes inputs of shape {expected}, layer {index - 1} gives {below}; make them equal",
                layer=index,
                expected=expected,
                given=below,
            )
        below = tuple(layer.zero_state(*readout.bias.shape[:-1], 1)[0].shape[lead + 1 :])
    if below is None or type(readout).forward is not Readout.forward:
        return
    if readout.unit_dims != len(below):
        raise ConfigError(
            f"the readout has unit_dims={readout.unit_dims}, the top layer gives {len(below)} dimensions a sample, {below}; pass "
            f"Readout({math.prod(below)}, ..., unit_dims={len(below)})",
            unit_dims=readout.unit_dims,
            given=below,
        )
    if readout.features != math.prod(below):
        raise ShapeError(
            f"the readout takes {readout.features} features, the top layer gives {math.prod(below)}; make it Readout({math.prod(below)}, ...)",
            features=readout.features,
            given=below,
        )
