"""Elementwise nonlinearities with their derivatives, written in terms of what a step has computed already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pararnn.errors import ConfigError


@dataclass(frozen=True)
class Activation:
    """A nonlinearity `function(x)` and its derivative `slope(x, output)`, where `output = function(x)`."""

    name: str
    function: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]


def _tanh_slope(x: Tensor, output: Tensor) -> Tensor:
    return 1 - output * output


def _sigmoid_slope(x: Tensor, output: Tensor) -> Tensor:
    return output * (1 - output)


def _relu_slope(x: Tensor, output: Tensor) -> Tensor:
    return (x > 0).to(output.dtype)


def _softplus_slope(x: Tensor, output: Tensor) -> Tensor:
    # torch takes softplus for the identity above 20, and so does its derivative.
    return torch.where(x > 20, torch.ones((), dtype=x.dtype, device=x.device), torch.sigmoid(x))


def _identity(x: Tensor) -> Tensor:
    return x


def _one(x: Tensor, output: Tensor) -> Tensor:
    return torch.ones_like(output)


ACTIVATIONS = {
    activation.name: activation
    for activation in (
        Activation("tanh", torch.tanh, _tanh_slope),
        Activation("sigmoid", torch.sigmoid, _sigmoid_slope),
        Activation("relu", torch.relu, _relu_slope),
        Activation("softplus", torch.nn.functional.softplus, _softplus_slope),
        Activation("linear", _identity, _one),
    )
}


def activation_of(choice: str | Activation) -> Activation:
    """The activation called `choice`, or `choice` itself.

    Raises:
        ConfigError: there is none of that name.
    """
    if isinstance(choice, Activation):
        return choice
    if choice not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ConfigError(f"activation={choice!r} is none of {known}; give one of them, or an Activation with a slope of its own", activation=choice)
    return ACTIVATIONS[choice]
