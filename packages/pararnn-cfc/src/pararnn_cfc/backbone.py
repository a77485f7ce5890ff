"""The shared layers of a CfC cell, which read features and state together.

The first layer is affine in both, so its feature part is computed apart (`project`) and the state part is added in the step (`read`).
The module is a plain sequence, so parameter names are those of ncps (`backbone.0.weight`, `backbone.2.weight`, ...).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal, TypeAlias, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pararnn.errors import ConfigError
from pararnn.structures.base import push_forward
from pararnn_cfc.affine import is_plain

Activation: TypeAlias = Literal["silu", "relu", "tanh", "gelu", "lecun_tanh"]


class LeCunTanh(nn.Module):
    """`1.7159 tanh(0.666 x)`, close to unit gain at unit variance (LeCun et al., "Efficient BackProp", 1998, section 4.4)."""

    def forward(self, x: Tensor) -> Tensor:
        return 1.7159 * torch.tanh(0.666 * x)


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "silu": nn.SiLU,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "lecun_tanh": LeCunTanh,
}


class Backbone(nn.Sequential):
    """`layers` affine maps of `units` outputs, each with its activation; dropout follows every layer but the first, as in ncps.

    Raises:
        ConfigError: fewer than one layer or unit, an unknown activation, a dropout outside of [0, 1].
    """

    def __init__(self, input_size: int, state_size: int, *, units: int, layers: int, activation: Activation, dropout: float) -> None:
        if units < 1 or layers < 1:
            raise ConfigError(f"a backbone needs at least one layer and one unit, got backbone_layers={layers} and backbone_units={units}")
        if activation not in ACTIVATIONS:
            raise ConfigError(f"activation {activation!r} is unknown; choose one of {', '.join(ACTIVATIONS)}")
        if not 0.0 <= dropout <= 1.0:
            raise ConfigError(f"backbone_dropout is a probability, got {dropout}")
        modules: list[nn.Module] = [nn.Linear(input_size + state_size, units), ACTIVATIONS[activation]()]
        for _ in range(1, layers):
            modules += [nn.Linear(units, units), ACTIVATIONS[activation]()]
            if dropout > 0.0:
                modules.append(nn.Dropout(dropout))
        super().__init__(*modules)
        self.input_size = input_size
        self.units = units

    @property
    def first(self) -> nn.Linear:
        """The layer that sees features and state."""
        return cast(nn.Linear, self[0])

    def project(self, features: Float[Tensor, "*lead input"]) -> Float[Tensor, "*lead units"]:
        """The feature part of the first layer, bias included."""
        return F.linear(features, self.first.weight[:, : self.input_size], self.first.bias)

    def draw_keep(self, projected: Float[Tensor, "*lead units"]) -> Float[Tensor, "*lead dropped"] | None:
        """Dropout factors for all dropout layers side by side, or None where nothing is dropped."""
        dropouts = [layer for layer in self if isinstance(layer, nn.Dropout) and layer.training]
        if not dropouts:
            return None
        return torch.cat([F.dropout(torch.ones_like(projected), layer.p) for layer in dropouts], dim=-1)

    def read(
        self,
        state: Float[Tensor, "*lead state"],
        projected: Float[Tensor, "*lead units"],
        keep: Float[Tensor, "*lead dropped"] | None,
    ) -> Float[Tensor, "*lead units"]:
        """The output of the last layer; dropout layers multiply by `keep`, so that the map is a pure function."""
        factors = iter(() if keep is None else keep.split(self.units, dim=-1))
        reading = projected + F.linear(state, self.first.weight[:, self.input_size :])
        for layer in list(self)[1:]:
            if not isinstance(layer, nn.Dropout):
                reading = layer(reading)
            elif keep is not None:
                reading = reading * next(factors)
        return reading

    @property
    def has_known_slopes(self) -> bool:
        """Whether every layer is one whose derivative `read_with_pullback` knows."""
        return all(is_plain(layer) or isinstance(layer, (nn.Dropout, *ACTIVATIONS.values())) for layer in self)

    def read_with_pullback(
        self,
        state: Float[Tensor, "*lead state"],
        projected: Float[Tensor, "*lead units"],
        keep: Float[Tensor, "*lead dropped"] | None,
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """`read`, and the map from derivatives by its result `(*lead, rows, units)` to derivatives by the state `(*lead, rows, state)`."""
        factors = iter(() if keep is None else keep.split(self.units, dim=-1))
        weight = self.first.weight[:, self.input_size :]
        reading = projected + F.linear(state, weight)
        pulls: list[Callable[[Tensor], Tensor]] = [_times_matrix(weight)]
        for layer in list(self)[1:]:
            if isinstance(layer, nn.Linear):
                reading = layer(reading)
                pulls.append(_times_matrix(layer.weight))
            elif not isinstance(layer, nn.Dropout):
                reading, slope = push_forward(layer, reading, torch.ones_like(reading))
                pulls.append(_times_columns(slope))
            elif keep is not None:
                factor = next(factors)
                reading = reading * factor
                pulls.append(_times_columns(factor))
        return reading, lambda rows: functools.reduce(lambda inner, pull: pull(inner), reversed(pulls), rows)


def _times_matrix(matrix: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda rows: rows @ matrix


def _times_columns(factor: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda rows: rows * factor.unsqueeze(-2)
