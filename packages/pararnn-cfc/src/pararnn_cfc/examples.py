"""Small cells with inputs that suit them, for `pararnn verify`, `pararnn bench` and the conformance kit."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pararnn_cfc.cfc import CfC
from pararnn_cfc.parallel import ParaCfC


def parallel_cfc(batch: int, length: int, *, seed: int) -> tuple[ParaCfC, Tensor]:
    """A `ParaCfC` with five features and eight channels, and irregular samples for it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ParaCfC(6, 8, dtype=torch.float64), _irregular(batch, length)


def cfc_cell(batch: int, length: int, *, seed: int) -> tuple[nn.Module, Tensor]:
    """The cell of a `CfC` with five features and six units, and irregular samples for it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CfC(5, 6, backbone_units=8).double().cell, _irregular(batch, length)


def mixed_memory_cell(batch: int, length: int, *, seed: int) -> tuple[nn.Module, Tensor]:
    """The cell of a `CfC` with an LSTM in front, four units, and irregular samples for it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CfC(5, 4, mixed_memory=True, backbone_units=8).double().cell, _irregular(batch, length)


def wired_cfc(batch: int, length: int, *, seed: int) -> tuple[nn.Module, Tensor]:
    """A wired cell of three small layers, and irregular samples for it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CfC(5, Ladder()).double().cell, _irregular(batch, length)


class Ladder:
    """A wiring of three layers of two neurons, each reading the layer before; it needs no ncps."""

    units = 6
    num_layers = 3

    def __init__(self) -> None:
        self.input_dim: int | None = None
        self.adjacency_matrix = torch.zeros(self.units, self.units)
        self.adjacency_matrix[0:2, 2:4] = 1
        self.adjacency_matrix[2:4, 4:6] = torch.eye(2)
        self.sensory_adjacency_matrix = torch.zeros(0, self.units)

    def get_neurons_of_layer(self, layer_id: int, /) -> list[int]:
        """The two neurons of a layer."""
        return [2 * layer_id, 2 * layer_id + 1]

    def is_built(self) -> bool:
        """Whether the number of features is known."""
        return self.input_dim is not None

    def build(self, input_dim: int, /) -> None:
        """Connect every feature to the first layer."""
        self.input_dim = input_dim
        self.sensory_adjacency_matrix = torch.zeros(input_dim, self.units)
        self.sensory_adjacency_matrix[:, 0:2] = 1


def _irregular(batch: int, length: int) -> Tensor:
    features = torch.randn(batch, length, 5, dtype=torch.float64)
    elapsed = 0.05 + torch.rand(batch, length, 1, dtype=torch.float64)
    return torch.cat((features, elapsed), dim=-1)
