"""Activations by the names that state-spaces uses."""

from __future__ import annotations

from torch import nn

from pararnn.errors import ConfigError

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "id": nn.Identity,
    "identity": nn.Identity,
    "linear": nn.Identity,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "elu": nn.ELU,
    "swish": nn.SiLU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
}
# Gated: half of the features open and close the other half.
GATED = "glu"


def activation(name: str | None, *, dim: int = -1) -> nn.Module:
    """The activation called `name`; None is the identity. `dim` is the dimension of features, which only `glu` needs (it halves it).

    Raises:
        ConfigError: an unknown name.
    """
    if name == GATED:
        return nn.GLU(dim=dim)
    if name is None:
        return nn.Identity()
    if name not in ACTIVATIONS:
        raise ConfigError(f"activation {name!r} is unknown; choose one of {', '.join((*ACTIVATIONS, GATED))}")
    return ACTIVATIONS[name]()
