"""Which system a module is, and which layer of a stack is meant."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pararnn.cell import Cell
from pararnn.errors import ConfigError
from pararnn_cola.criticality.foreign import CellSystem, torch_system
from pararnn_cola.criticality.systems import System, layer_system, stack_system
from pararnn_cola.errors import CoverageError
from pararnn_cola.layers.base import Layer
from pararnn_cola.layers.dense import DenseLayer
from pararnn_cola.network import Network


def system_of(source: Any, layer: int | None = None) -> System:
    """The system that `source` is: a network (of one `layer`, or of all jointly), a layer, a cell, a recurrent module of torch, or a system itself.

    Raises:
        CoverageError: `source` is something else, or an ensemble.
        ConfigError: there is no such layer.
    """
    if isinstance(source, Network):
        _refuse_ensemble(source.lead)
        layers = source.recurrent
        if layer is not None or len(layers) == 1:
            return layer_system(layers[checked_layer(source, 0 if layer is None else layer)])
        return stack_system(layers, f"{len(layers)} layers of {type(layers[0]).__name__}, jointly")
    if layer is not None:
        raise ConfigError(f"layer={layer} chooses a layer of a Network, but a {type(source).__name__} was given; leave it out", layer=layer)
    if isinstance(source, System):
        return source
    if isinstance(source, Layer):
        if isinstance(source, DenseLayer):
            _refuse_ensemble(tuple(source.bias.shape[:-1]))
        return layer_system(source)
    if isinstance(source, nn.RNNBase | nn.RNNCellBase):
        return torch_system(source)
    if isinstance(source, nn.Module) and isinstance(source, Cell):
        return CellSystem(source)
    raise CoverageError(
        f"{type(source).__name__} has no state that this package knows of; give a Network, a Layer, a cell of the core (for a ParaRNN: one of its "
        ".layers), torch's RNN, GRU, LSTM or a cell of theirs, or StepSystem(step, initial) with your own step",
        type=type(source).__name__,
    )


def checked_layer(network: Network, layer: int) -> int:
    """`layer`, counted from below or, if negative, from the top.

    Raises:
        ConfigError: `network` has no such layer.
    """
    count = len(network.recurrent)
    if not -count <= layer < count:
        raise ConfigError(f"layer={layer}, but the network has {count}, numbered from 0", layer=layer)
    return layer % count


@torch.no_grad()
def seen_by(network: Network, inputs: Tensor, layer: int) -> Tensor:
    """What `layer` is fed when `inputs` `(batch, time, *input)` drive the network: the outputs of the layer below, `(batch, time, *units)`."""
    for below in network.recurrent[:layer]:
        state, outputs = below.zero_state(inputs.shape[0]), []
        for u in inputs.unbind(1):
            state, _ = below(u, state)
            outputs.append(state[0])
        inputs = torch.stack(outputs, 1)
    return inputs


def _refuse_ensemble(lead: tuple[int, ...]) -> None:
    if lead:
        raise CoverageError(
            f"an ensemble of {lead[0]} networks has as many gains and exponents; measure or initialise the networks one by one before they are "
            "joined, or those that unstack() gives",
            runs=lead[0],
        )
