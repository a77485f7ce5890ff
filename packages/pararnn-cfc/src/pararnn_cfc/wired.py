"""Layers of CfC neurons with sparse synapses between them, as one cell (neural circuit policies).

The layers fire in order within one sample: each reads the new state of the layer before it and its own old state. The state is the layers'
states side by side, so the whole is one recurrent map and one solve serves all layers.

Source: Lechner et al., "Neural circuit policies enabling auditable autonomy", Nature Machine Intelligence, 2020; `ncps.torch.WiredCfCCell`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pararnn.structures.dense import Dense
from pararnn_cfc.ncps_cell import STATE_BOUNDS, CfCCell, CfCDrive, DroppedCfCDrive, Mode
from pararnn_cfc.timespans import split_elapsed
from pararnn_cfc.wiring import Wiring, wired_layers


class WiredCfC(nn.Module):
    """The cell of a wiring; `input_size=None` takes the number of features that the wiring was built for.

    Each layer is a `CfCCell` without a backbone, named `layer_0`, `layer_1`, ...; the output is the state of the last one.

    Raises:
        ConfigError: an unknown mode, or a wiring that cannot be used (see `wired_layers`).
    """

    structure = Dense

    def __init__(self, input_size: int | None, wiring: Wiring, mode: Mode = "default") -> None:
        super().__init__()
        layers = wired_layers(wiring, input_size)
        self.input_size = layers[0].input_size
        self.layer_sizes = [layer.state_size for layer in layers]
        self.state_size = sum(self.layer_sizes)
        self.output_size = self.layer_sizes[-1]
        self.state_bounds = STATE_BOUNDS.get(mode)
        for index, layer in enumerate(layers):
            cell = CfCCell(layer.input_size, layer.state_size, mode, backbone_layers=0, sparsity_mask=layer.mask)
            self.add_module(f"layer_{index}", cell)

    @property
    def layers(self) -> list[CfCCell]:
        """The layers in the order in which they fire."""
        return [layer for layer in self.children() if isinstance(layer, CfCCell)]

    def initial_state(self, batch: int) -> Float[Tensor, "batch state"]:
        """Zeros, in the dtype and on the device of the weights."""
        return torch.cat([layer.initial_state(batch) for layer in self.layers], dim=-1)

    def drive(self, x: Float[Tensor, "batch time input"]) -> CfCDrive:
        """What the first layer's heads see of the features, and elapsed time.

        Raises:
            CellError: a head was replaced by a layer that cannot be masked and split.
            ShapeError: `x` is not as wide as the features and the elapsed time.
        """
        for layer in self.layers:
            layer.require_plain()
        features, elapsed = split_elapsed(x, input_size=self.input_size, state_size=self.state_size)
        return CfCDrive(self.layers[0].project(features), elapsed)

    def step(self, state: Float[Tensor, "*lead state"], drive: CfCDrive | DroppedCfCDrive) -> Float[Tensor, "*lead state"]:
        """The states of all layers after one sample."""
        inputs = drive.inputs
        states: list[Tensor] = []
        for layer, own, elapsed in self._layers_with_their_parts(state, drive):
            if states:
                inputs = layer.project(states[-1])
            states.append(layer.step(own, CfCDrive(inputs, elapsed)))
        return torch.cat(states, dim=-1)

    def linearize(self, state: Float[Tensor, "*lead state"], drive: CfCDrive | DroppedCfCDrive) -> tuple[Tensor, Dense]:
        """`step` and its Jacobian: a layer sees its own old state, and all that the layer before it saw."""
        if any(type(layer).step is not CfCCell.step for layer in self.layers):
            return Dense.linearize(lambda inner: self.step(inner, drive), state)
        inputs, first = drive.inputs, 0
        states: list[Tensor] = []
        blocks: list[Tensor] = []
        for layer, own, elapsed in self._layers_with_their_parts(state, drive):
            if states:
                inputs = layer.project(states[-1])
            following, rows = layer.linearize_direct(own, CfCDrive(inputs, elapsed))
            by_inputs, by_own = rows[..., : layer.input_size], rows[..., layer.input_size :]
            block = F.pad(by_own, (first, self.state_size - first - layer.state_size))
            blocks.append(block + by_inputs @ blocks[-1] if blocks else block)
            states.append(following)
            first += layer.state_size
        return torch.cat(states, dim=-1), Dense(torch.cat(blocks, dim=-2))

    def _layers_with_their_parts(self, state: Tensor, drive: CfCDrive | DroppedCfCDrive) -> Iterator[tuple[CfCCell, Tensor, Tensor]]:
        one_for_each_unit = drive.elapsed.shape[-1] == self.state_size
        elapsed = drive.elapsed.split(self.layer_sizes, dim=-1) if one_for_each_unit else [drive.elapsed] * len(self.layer_sizes)
        return zip(self.layers, state.split(self.layer_sizes, dim=-1), elapsed, strict=True)

    def readout(self, states: Float[Tensor, "*lead state"]) -> Float[Tensor, "*lead output"]:
        """The part of `states` that belongs to the last layer."""
        return states[..., self.state_size - self.output_size :]
