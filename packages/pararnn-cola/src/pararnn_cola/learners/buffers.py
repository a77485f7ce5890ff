"""Where the gradients of online rules are added up: `.grad` itself, or a float32 shadow of it in half precision."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pararnn_cola.network import Network

HALF = (torch.float16, torch.bfloat16)


class GradientBuffers:
    """One buffer for each parameter that is not frozen, grouped by the module that fills it.

    `spent` says that the optimizer has used what is in there: the next step starts from zero. Until then the gradient stays to be looked at.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.owners: list[nn.Module] = [*network.recurrent, network.readout]
        self.shadows: dict[nn.Parameter, Tensor] = {}
        self.spent = False

    def open(self) -> list[dict[str, Tensor]]:
        """The buffers to add to, one dict a layer, lowest first, and one for the readout."""
        groups = [{name: self._buffer(p) for name, p in owner.named_parameters(recurse=False) if p.requires_grad} for owner in self.owners]
        if self.spent:
            torch._foreach_zero_([buffer for group in groups for buffer in group.values()])
            self.spent = False
        return groups

    def close(self) -> None:
        """Show what was added in `.grad` where that is not the buffer."""
        for parameter, shadow in self.shadows.items():
            parameter.grad = shadow.to(parameter.dtype)

    def discard_spent(self) -> None:
        """Make `.grad` ready for autograd to add to."""
        if self.spent:
            for parameter in self.network.parameters():
                parameter.grad = None
            self.spent = False

    def _buffer(self, parameter: nn.Parameter) -> Tensor:
        if parameter.dtype in HALF:
            shadow = self.shadows.get(parameter)
            # A gradient that somebody has dropped, as zero_grad() does, starts anew.
            if shadow is None or parameter.grad is None:
                shadow = self.shadows[parameter] = torch.zeros_like(parameter, dtype=torch.float32)
            return shadow
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        return parameter.grad

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the gradients gathered so far, by parameter name, shadows where there are any."""
        found = {}
        for name, parameter in self.network.named_parameters():
            gradient = self.shadows.get(parameter, parameter.grad)
            if gradient is not None:
                found[name] = gradient.detach().clone()
        return found

    def load_state_dict(self, state: dict[str, Tensor] | None) -> None:
        """Go on from gradients that `state_dict` gave; None: from none."""
        self.shadows.clear()
        self.spent = False
        for name, parameter in self.network.named_parameters():
            gradient = None if state is None else state.get(name)
            parameter.grad = None if gradient is None else gradient.detach().clone().to(parameter.device, parameter.dtype)
            if gradient is not None and parameter.dtype in HALF:
                self.shadows[parameter] = gradient.detach().clone().to(parameter.device)
