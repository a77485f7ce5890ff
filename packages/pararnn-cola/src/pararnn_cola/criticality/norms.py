"""The norm of recurrent maps: how much they stretch at most."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError
from pararnn_cola.layers.base import Layer
from pararnn_cola.network import Network


@torch.no_grad()
def operator_norm(source: Any) -> float:
    """The largest singular value of the recurrent map of a layer, of a network with one layer, or of a matrix.

    A vector is the diagonal of its map; matrices of gates, stacked as torch stacks them, count as one tall matrix.

    Raises:
        ConfigError: `source` has no recurrent weights, several, or some that are not finite.
    """
    if isinstance(source, Network):
        if len(source.recurrent) != 1:
            raise ConfigError(f"the network has {len(source.recurrent)} recurrent maps; ask for the norm of one of network.layers")
        source = source.recurrent[0]
    weight = source if isinstance(source, Tensor) else recurrent_weight(source)
    if not bool(weight.isfinite().all()):
        raise ConfigError("the recurrent weights are not all finite, so they have no norm; start from fresh ones")
    if isinstance(source, Layer):
        norm = source.operator_norm()
        if norm.dim():
            raise ConfigError(f"an ensemble of {norm.numel()} layers has as many norms; call layer.operator_norm() for all of them")
        return float(norm)
    if weight.dim() > 2 or weight.dim() == 0:
        raise ConfigError(f"weights of shape {tuple(weight.shape)} are no matrix, and which map they are part of is not known; give a Layer")
    return float(weight.double().abs().max() if weight.dim() == 1 else torch.linalg.matrix_norm(weight.double(), 2))


def chosen_weight(source: Any, weight: Any) -> nn.Parameter:
    """`weight`, which a caller named, or what `recurrent_weight` finds if that is None.

    Raises:
        ConfigError: `weight` is no parameter, or one of another module.
    """
    if weight is None:
        return recurrent_weight(source)
    if not isinstance(weight, nn.Parameter):
        raise ConfigError(f"weight is of type {type(weight).__name__}; give the parameter itself: weight=module.name")
    if isinstance(source, nn.Module) and not any(weight is own for own in source.parameters()):
        raise ConfigError(
            f"the weight of shape {tuple(weight.shape)} is no parameter of the {type(source).__name__}, whose exponent it would not change; "
            "give one of its own: weight=module.name",
            shape=tuple(weight.shape),
        )
    return weight


def recurrent_weight(module: Any) -> nn.Parameter:
    """The parameter through which the state of `module` reaches the next.

    Raises:
        ConfigError: it is not known which one that is.
    """
    name = "weight_hh"
    if isinstance(module, Layer):
        name = module.recurrent_name
    elif isinstance(module, nn.RNNBase) and module.num_layers == 1:
        name = "weight_hh_l0"
    weight = dict(module.named_parameters()).get(name) if isinstance(module, nn.Module) else None
    if weight is None or not isinstance(module, Layer | nn.RNNBase | nn.RNNCellBase):
        raise ConfigError(f"which parameter of {type(module).__name__} carries its state on is not known; pass it: weight=module.name")
    return weight
