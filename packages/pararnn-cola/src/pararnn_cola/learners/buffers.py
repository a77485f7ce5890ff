"""Where the gradients of online rules are added up: `.grad` itself, or a float32 shadow of it in half precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pararnn_cola.errors import StreamError
from pararnn_cola.network import Network

HALF = (torch.float16, torch.bfloat16)


class Slot(NamedTuple):
    """A parameter and where it stands."""

    name: str
    """in its layer, or in the readout"""
    owner: nn.Module
    key: str
    parameter: nn.Parameter


@dataclass(eq=False)
class Gathered:
    """What is known of the gradients of one network; all learners of that network share it, as they share `.grad`."""

    shadows: dict[nn.Parameter, Tensor] = field(default_factory=dict)
    """float32 sums of parameters in half precision"""
    shown: dict[nn.Parameter, tuple[Tensor, int]] = field(default_factory=dict)
    """what we left in `.grad`, with its version, by which a change of somebody else is noticed"""
    spent: bool = False
    unlearned: bool = False

    @classmethod
    def of(cls, network: Network) -> Gathered:
        """The record of `network`. It hangs on the network, past the module's own bookkeeping, so that copies and pickles have one of their own."""
        found: Gathered = vars(network).setdefault("_gathered", cls())
        return found


class GradientBuffers:
    """One buffer for each parameter that is not frozen, grouped by the module that fills it.

    `spent` says that the optimizer has used what is in there: the next step starts from zero. Until then the gradient stays to be looked at.
    `unlearned` says that something was gathered that no optimizer has used.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.owners: list[nn.Module] = [*network.recurrent, network.readout]
        self.slots = [[_slot(owner, name, parameter) for name, parameter in _named(owner)] for owner in self.owners]
        self.flat = [slot for slots in self.slots for slot in slots]
        self.gathered = Gathered.of(network)

    @property
    def shadows(self) -> dict[nn.Parameter, Tensor]:
        """Float32 sums, of parameters in half precision only."""
        return self.gathered.shadows

    @property
    def spent(self) -> bool:
        """Whether the optimizer has used what is gathered."""
        return self.gathered.spent

    @spent.setter
    def spent(self, value: bool) -> None:
        self.gathered.spent = value

    @property
    def unlearned(self) -> bool:
        """Whether something is gathered that waits for an optimizer."""
        return self.gathered.unlearned

    @unlearned.setter
    def unlearned(self, value: bool) -> None:
        self.gathered.unlearned = value

    def check(self) -> None:
        """Raise `StreamError` if a parameter was replaced since this learner was made: its optimizer would go on moving the old one."""
        for slot in self.flat:
            if slot.owner._parameters.get(slot.key) is not slot.parameter:
                raise StreamError(
                    f"the parameter {slot.name} of {type(slot.owner).__name__} was replaced after the learner was made, so the optimizer holds "
                    "another one; write into it (parameter.copy_() under torch.no_grad()), or make a new learner",
                    parameter=slot.name,
                )

    def open(self) -> list[dict[str, Tensor]]:
        """The buffers to add to, one dict a layer, lowest first, and one for the readout."""
        groups = [{slot.name: self._buffer(slot.parameter) for slot in slots if slot.parameter.requires_grad} for slots in self.slots]
        if self.gathered.spent:
            torch._foreach_zero_([buffer for group in groups for buffer in group.values()])
            self._drop_frozen()
            self.gathered.spent = False
        return groups

    def close(self) -> None:
        """Show what was added in `.grad` where that is not the buffer; a sum whose `.grad` somebody else has changed since `open` is forgotten."""
        for parameter, shadow in list(self.shadows.items()):
            if parameter.grad is None or self._touched(parameter):
                del self.shadows[parameter]
            else:
                parameter.grad.copy_(shadow)
                self._note(parameter, parameter.grad)

    def _drop_frozen(self) -> None:
        """An optimizer applies whatever gradient it finds, so a parameter frozen in mid-stream must not keep its last one."""
        for slot in self.flat:
            if not slot.parameter.requires_grad and slot.parameter.grad is not None:
                slot.parameter.grad = None
                self.shadows.pop(slot.parameter, None)

    def _buffer(self, parameter: nn.Parameter) -> Tensor:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.dtype not in HALF:
            return parameter.grad
        shadow = self.shadows.get(parameter)
        if shadow is None or self._touched(parameter):
            shadow = self.shadows[parameter] = parameter.grad.detach().to(torch.float32)
            self._note(parameter, parameter.grad)
        return shadow

    def _note(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        self.gathered.shown[parameter] = (gradient, gradient._version)

    def _touched(self, parameter: nn.Parameter) -> bool:
        """Whether somebody else has dropped, zeroed, clipped or replaced the gradient: then it counts, not the shadow."""
        gradient, version = self.gathered.shown.get(parameter, (None, 0))
        return gradient is None or gradient is not parameter.grad or gradient._version != version

    def current(self, parameter: nn.Parameter) -> Tensor | None:
        """The gradient gathered for `parameter`, in float32 where it is in half precision."""
        shadow = self.shadows.get(parameter)
        return parameter.grad if shadow is None or self._touched(parameter) else shadow

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the gradients gathered so far, by parameter name, shadows where there are any."""
        found = {name: self.current(parameter) for name, parameter in self.network.named_parameters()}
        return {name: gradient.detach().clone() for name, gradient in found.items() if gradient is not None}

    def load_state_dict(self, state: dict[str, Tensor] | None) -> None:
        """Go on from gradients that `state_dict` gave; None: from none."""
        self.shadows.clear()
        self.gathered.shown.clear()
        self.spent, self.unlearned = False, state is not None
        for name, parameter in self.network.named_parameters():
            gradient = None if state is None else state.get(name)
            parameter.grad = None if gradient is None else gradient.detach().to(parameter.device, parameter.dtype, copy=True)
            if gradient is not None and parameter.grad is not None and parameter.dtype in HALF:
                self.shadows[parameter] = gradient.detach().to(parameter.device, torch.float32, copy=True)
                self._note(parameter, parameter.grad)


def _named(owner: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    # One parameter under two names has a formula for each, and both add to its gradient.
    return owner.named_parameters(remove_duplicate=False)


def _slot(owner: nn.Module, name: str, parameter: nn.Parameter) -> Slot:
    path, _, key = name.rpartition(".")
    return Slot(name, owner.get_submodule(path), key, parameter)
