"""Layers that are split: their feature part is computed for the whole sequence, their state part in the step.

Splitting reads the weight instead of calling the layer, so whatever acts only when the layer is called would be lost without a word.
"""

from __future__ import annotations

from torch import nn
from torch.nn.utils import parametrize

from pararnn.errors import CellError

# As they are before anybody patches them.
FORWARD, CALL = nn.Linear.forward, nn.Module.__call__


def is_plain(layer: nn.Module) -> bool:
    """Whether calling `layer` is `x W^T + b` with its present `weight` and `bias`; parametrised weights count as present."""
    kind = type(layer)
    if not isinstance(layer, nn.Linear) or kind.forward is not FORWARD or kind.__call__ is not CALL or "forward" in layer.__dict__:
        return False
    present = "weight" in layer._parameters or parametrize.is_parametrized(layer, "weight")
    return present or not layer._forward_pre_hooks


def require_plain(layer: nn.Module, name: str) -> None:
    """Raise `CellError` where `layer` cannot be split."""
    if not is_plain(layer):
        raise CellError(
            f"{name} is split into a feature and a state part, so it must be a plain Linear layer, but it is a {type(layer).__name__} with its own "
            "forward or with a weight that a hook computes; use torch.nn.utils.parametrizations (weight_norm, spectral_norm) or adapt another layer",
            layer=name,
        )
