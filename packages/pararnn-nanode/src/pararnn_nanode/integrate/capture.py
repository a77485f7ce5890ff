"""A field together with the parameters that it had when a walk began, for work that is done later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pararnn.errors import DifferentiationError
from pararnn_nanode.integrate.methods import Equation

Result = TypeVar("Result")


class _Holder(nn.Module):
    """Calls any function where `functional_call` has put parameters in the place of the field's own."""

    def __init__(self, field: nn.Module) -> None:
        super().__init__()
        self.field = field

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


@dataclass(frozen=True, eq=False)
class Capture:
    """Parameters and buffers of a field as they are now.

    When a backward pass evaluates the field again, its module may hold others: after `torch.func.functional_call`, or where a replica is gone.
    """

    field: nn.Module
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    others: dict[str, str]
    versions: tuple[int, ...]

    @classmethod
    def of(cls, field: Equation) -> Capture:
        """The parameters of `field` as they are now, each once; `others` are further places where one is held, with its name."""
        module = field if isinstance(field, nn.Module) else nn.Module()
        parameters: dict[str, Tensor] = dict(module.named_parameters())
        names = {id(parameter): name for name, parameter in parameters.items()}
        # Modules come once each here. `functional_call` would find tied weights itself, but leaves a module that has two names with the substitute.
        places = ((f"{prefix}.{name}".lstrip("."), held) for prefix, inner in module.named_modules() for name, held in inner._parameters.items())
        others = {place: names[id(held)] for place, held in places if held is not None and place != names[id(held)]}
        return cls(module, parameters, dict(module.named_buffers()), others, tuple(parameter._version for parameter in parameters.values()))

    def run(self, function: Callable[..., Result], *arguments: Any, parameters: dict[str, Tensor] | None = None) -> Result:
        """`function(*arguments)` while the field holds the captured tensors, or `parameters` in their place."""
        held = {**self.buffers, **(self.parameters if parameters is None else parameters)}
        held |= {place: held[name] for place, name in self.others.items()}
        named = {f"field.{name}": tensor for name, tensor in held.items()}
        result: Result = torch.func.functional_call(_Holder(self.field), named, (function, *arguments), tie_weights=False)
        return result

    def check_unchanged(self) -> None:
        """Raise where a captured parameter was edited in place since.

        Raises:
            DifferentiationError: the gradient would be taken at other weights than the forward pass had.
        """
        for (name, parameter), version in zip(self.parameters.items(), self.versions, strict=True):
            if parameter._version != version:
                raise DifferentiationError(
                    f"parameter {name} was edited in place between forward and backward (version {parameter._version}, was {version}); "
                    "call backward before the optimiser steps, or integrate again"
                )
