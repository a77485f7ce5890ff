"""What the fields made of one layer share: `f = activation(W(t) * x + b(t) + U(t) * u)`, with a product that each defines."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import ClassVar, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pararnn.errors import ConfigError, DTypeError, InputError, ShapeError
from pararnn_nanode.fields.base import Field, Weights
from pararnn_nanode.paths.base import WeightPath

Activation: TypeAlias = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "gelu": F.gelu,
    "silu": F.silu,
}

# Cotangent of the argument from that of the result and the result, where the result alone tells: no argument is kept, and it is one operation.
BY_RESULT: dict[str | None, Callable[[Tensor, Tensor], Tensor]] = {
    None: lambda cotangent, result: cotangent,
    "tanh": torch.ops.aten.tanh_backward,
    "sigmoid": torch.ops.aten.sigmoid_backward,
    "relu": lambda cotangent, result: torch.ops.aten.threshold_backward(cotangent, result, 0),
}


class LayerField(Field):
    """One layer with moving weights as a field; a subclass gives `product` and `evaluate`.

    Args:
        dim: channels of the state.
        path: the weights of the state.
        bias: a path `(dim,)`, or None.
        input: the weights of inputs `u`, or None.
        activation: a name of `ACTIVATIONS`, a function of tensors without parameters, or None for a linear equation.
    """

    sites: int = 0
    """Dimensions of the state after its channels."""

    elementwise: ClassVar[bool] = False
    """Whether weights only scale the state, so that real ones act on complex states too."""

    def __init__(self, dim: int, path: WeightPath, *, bias: WeightPath | None, input: WeightPath | None, activation: str | Activation | None) -> None:
        super().__init__()
        if bias is not None and bias.shape != (dim,):
            raise ShapeError(f"the bias of a {type(self).__name__} of {dim} channels needs a path of shape {(dim,)}, got {bias.shape}")
        if isinstance(activation, nn.Module):
            raise ConfigError(
                f"the activation is the module {type(activation).__name__}, whose parameters no path holds; pass a function such as torch.tanh, "
                "or write the whole right-hand side as a module for CallableField"
            )
        if isinstance(activation, str) and activation not in ACTIVATIONS:
            raise ConfigError(f"activation must be None, a function or one of {', '.join(ACTIVATIONS)}, got {activation!r}")
        self.dim = dim
        self.path = path
        self.bias = bias
        self.input = input
        self.activation = activation
        self._activate = ACTIVATIONS[activation] if isinstance(activation, str) else activation

    @abc.abstractmethod
    def product(self, weight: Tensor, x: Tensor) -> Tensor:
        """`weight` `(*lead, *shape)` applied to `x` `(*lead, *batch, channels, *sites)`."""

    def weights(self, times: Tensor, anchors: Tensor | None = None, u: Tensor | None = None) -> Weights:
        weight = self.path.grid(times, anchors)
        drive = None if self.bias is None else self.bias.grid(times, anchors)
        if u is not None:
            pushed = self._pushed(times, anchors, u)
            drive = pushed if drive is None else pushed + self.spread(drive, pushed.ndim)
        elif self.input is not None:
            raise InputError(f"this {type(self).__name__} has an input path {self.input.shape}, but no inputs u were given; pass u=")
        return (weight,) if drive is None else (weight, drive)

    def check_state(self, x: Tensor) -> None:
        if x.ndim <= self.sites or x.shape[-1 - self.sites] != self.dim:
            places = ", ".join(("...", str(self.dim), *("sites",) * self.sites))
            raise ShapeError(f"a {type(self).__name__} of {self.dim} channels needs a state ({places}), got {tuple(x.shape)}")
        held = next((parameter.dtype for parameter in self.parameters()), x.dtype)
        if x.is_complex():
            if held != x.dtype and not (self.elementwise and held == x.dtype.to_real()):
                raise DTypeError(
                    f"the state is {x.dtype} and the weights are {held}; make the paths with dtype={x.dtype}, or solve with a real state"
                )
        elif held != x.dtype and x.dtype.is_floating_point and not torch.is_autocast_enabled(x.device.type):
            raise DTypeError(f"the state is {x.dtype} and the weights are {held}; call .to({x.dtype}) on the module, or .to({held}) on the state")

    def spread(self, bias: Tensor, ndim: int) -> Tensor:
        """`bias` `(*lead, dim)` with dimensions of size 1 where a state of `ndim` dimensions has its batch and its sites."""
        batch = ndim - bias.ndim - self.sites
        return bias.reshape(*bias.shape[:-1], *(1,) * batch, self.dim, *(1,) * self.sites)

    def extra_repr(self) -> str:
        """Channels and activation."""
        return f"dim={self.dim}, activation={self.activation!r}"

    def _pushed(self, times: Tensor, anchors: Tensor | None, u: Tensor) -> Tensor:
        if self.input is None:
            raise ConfigError(f"inputs u were given to a {type(self).__name__} without an input path; pass input= when it is made")
        channels = self.input.shape[1]
        if u.ndim <= times.ndim + self.sites or u.shape[-1 - self.sites] != channels or u.shape[: times.ndim] != times.shape:
            places = ", ".join((*map(str, times.shape), "*batch", str(channels), *("sites",) * self.sites))
            raise ShapeError(f"inputs u for an input path {self.input.shape} are ({places}), got {tuple(u.shape)}")
        return self.product(self.input.grid(times, anchors), u)
