"""What a wired CfC reads from a wiring object: which neurons form a layer, and which weights exist.

Wirings are made with the ncps package (`ncps.wirings`); anything with the same members serves. Nothing here keeps the wiring itself, so a
trained model is pickled and loaded without ncps.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from pararnn.errors import ConfigError


@runtime_checkable
class Wiring(Protocol):
    """The members of a wiring that are read; adjacency matrices are `(source, target)`, zero where there is no synapse."""

    units: int
    input_dim: int | None
    adjacency_matrix: Any
    sensory_adjacency_matrix: Any

    @property
    def num_layers(self) -> int: ...

    def get_neurons_of_layer(self, layer_id: int, /) -> Sequence[int]: ...

    def is_built(self) -> bool: ...

    def build(self, input_dim: int, /) -> None: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class WiredLayer:
    """One layer of neurons that reads the layer before it, or the features."""

    input_size: int
    state_size: int
    mask: Float[Tensor, "state inputs"]


def wired_layers(wiring: Wiring, input_size: int | None) -> tuple[WiredLayer, ...]:
    """The layers of `wiring` for `input_size` features (None: as built), in the order in which they fire.

    A wiring that is not built yet is built, which sets its synapses; one that is built stays as it is. (Building twice adds synapses to the
    random wirings of ncps.) Synapses inside a layer are not read: the state of a layer sees itself densely, as in ncps.

    Raises:
        ConfigError: the wiring was built for another number of features, was never told one, or its layers do not partition its neurons.
    """
    if not wiring.is_built():
        if input_size is None:
            raise ConfigError("the wiring does not know its number of features; pass input_size or call wiring.build(input_size)")
        wiring.build(input_size)
    features = wiring.input_dim
    if features is None or input_size not in (None, features):
        raise ConfigError(f"the wiring was built for {features} features but input_size is {input_size}; make a new wiring for this model")
    neurons = [list(wiring.get_neurons_of_layer(layer)) for layer in range(wiring.num_layers)]
    if sorted(neuron for layer in neurons for neuron in layer) != list(range(wiring.units)):
        sizes = [len(layer) for layer in neurons]
        raise ConfigError(f"the layers of the wiring, of sizes {sizes}, do not hold each of its {wiring.units} neurons once")
    sensory, inner = _strengths(wiring.sensory_adjacency_matrix), _strengths(wiring.adjacency_matrix)
    incoming = [sensory[:, neurons[0]]] + [inner[early][:, late] for early, late in itertools.pairwise(neurons)]
    return tuple(
        WiredLayer(
            input_size=synapses.shape[0],
            state_size=len(layer),
            mask=torch.cat([synapses.mT, synapses.new_ones(len(layer), len(layer))], dim=1),
        )
        for synapses, layer in zip(incoming, neurons, strict=True)
    )


def _strengths(adjacency: Any) -> Tensor:
    return torch.as_tensor(adjacency).abs().to(torch.get_default_dtype())
