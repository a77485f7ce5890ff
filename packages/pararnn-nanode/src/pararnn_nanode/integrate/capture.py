"""A field together with the tensors that it had when a walk began, for work that is done later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pararnn.errors import DifferentiationError
from pararnn_nanode.integrate.methods import Equation
from pararnn_nanode.integrate.sharing import replacing

Result = TypeVar("Result")


class _Holder(nn.Module):
    """Calls any function where `functional_call` has put parameters in the place of the field's own."""

    def __init__(self, field: nn.Module) -> None:
        super().__init__()
        self.field = field

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


@dataclass(eq=False)
class Capture:
    """Parameters and buffers of a field as they are now.

    When a backward pass evaluates the field again, its module may hold others: after `torch.func.functional_call`, or where a replica is gone.

    Attributes:
        others: further places where a parameter is held, with its name.
        versions: of each tensor that must not change before the backward pass, with what it is: how often it had been edited in place.
    """

    field: nn.Module
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    others: dict[str, str]
    versions: dict[str, tuple[Tensor, int]]
    _before: dict[str, tuple[Tensor, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, field: Equation, **inputs: object) -> Capture:
        """The tensors of `field` as they are now, each once, and those of `inputs` that are tensors."""
        module = field if isinstance(field, nn.Module) else nn.Module()
        parameters: dict[str, Tensor] = dict(module.named_parameters())
        names = {id(parameter): name for name, parameter in parameters.items()}
        # Modules come once each here. `functional_call` would find tied weights itself, but leaves a module that has two names with the substitute.
        places = ((f"{prefix}.{name}".lstrip("."), held) for prefix, inner in module.named_modules() for name, held in inner._parameters.items())
        others = {place: names[id(held)] for place, held in places if held is not None and place != names[id(held)]}
        buffers = dict(module.named_buffers())
        given = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
        versions = _versions("parameter", parameters) | _versions("input", given)
        return cls(module, parameters, buffers, others, versions, _versions("buffer", buffers))

    def run(self, function: Callable[..., Result], *arguments: Any, parameters: dict[str, Tensor] | None = None) -> Result:
        """`function(*arguments)` while the field holds the captured tensors, or `parameters` in their place."""
        return self._run(self.buffers, parameters, function, arguments)

    def run_again(self, function: Callable[..., Result], *arguments: Any, parameters: dict[str, Tensor] | None = None) -> Result:
        """`run` on copies of the buffers: what counts evaluations or averages over them, such as the statistics of a batch norm, has done so."""
        return self._run({name: buffer.clone() for name, buffer in self.buffers.items()}, parameters, function, arguments)

    def _run(
        self, buffers: dict[str, Tensor], parameters: dict[str, Tensor] | None, function: Callable[..., Result], arguments: tuple[Any, ...]
    ) -> Result:
        held = {**buffers, **(self.parameters if parameters is None else parameters)}
        held |= {place: held[name] for place, name in self.others.items()}
        own = {**dict(self.field.named_parameters(remove_duplicate=False)), **dict(self.field.named_buffers(remove_duplicate=False))}
        if all(own.get(name) is tensor for name, tensor in held.items()):
            # Nothing to replace, so that threads may share the field.
            return function(*arguments)
        named = {f"field.{name}": tensor for name, tensor in held.items()}
        with replacing(self.field):
            result: Result = torch.func.functional_call(_Holder(self.field), named, (function, *arguments), tie_weights=False)
        return result

    def seal(self) -> None:
        """End the forward pass: buffers that it left alone must stay so. Those that it updated are statistics, which any later pass may update."""
        self.versions |= {what: (tensor, version) for what, (tensor, version) in self._before.items() if _version(tensor) == version}

    def check_unchanged(self) -> None:
        """Raise where a captured tensor was edited in place since.

        Raises:
            DifferentiationError: the gradient would be taken elsewhere than the forward pass was.
        """
        for what, (tensor, version) in self.versions.items():
            if (now := _version(tensor)) != version:
                raise DifferentiationError(
                    f"{what} was edited in place between forward and backward (version {now}, was {version}); "
                    "call backward before the optimiser steps, or integrate again"
                )


def _versions(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, int]]:
    return {f"{kind} {name}": (tensor, _version(tensor)) for name, tensor in tensors.items()}


def _version(tensor: Tensor) -> int:
    # Tensors of torch.inference_mode do not count their edits.
    return 0 if tensor.is_inference() else tensor._version
