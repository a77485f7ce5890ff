"""Losses of one step, each with the gradient by the output: one number a sample, nothing divided by the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from pararnn.errors import ConfigError, DTypeError, ShapeError

SampleLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""`(output (*lead, batch, output), target) -> losses (*lead, batch)`, differentiable by the output."""


class Loss:
    """A loss for each sample, `values(output, target)`, and `both`, which gives its gradient by the output too."""

    name = "custom"

    def __init__(self, function: SampleLoss) -> None:
        self.function = function

    def check(self, output: Tensor, target: Tensor) -> None:
        """Raise if `target` cannot be one for `output`; here anything can."""

    def values(self, output: Tensor, target: Tensor) -> Tensor:
        """Losses `(*lead, batch)`, differentiable by autograd."""
        losses = self.function(output, target)
        if losses.shape != output.shape[: losses.dim()] or losses.dim() >= output.dim() or losses.dim() == 0:
            raise ShapeError(
                f"the loss gave shape {tuple(losses.shape)} for outputs {tuple(output.shape)}; it has to give one number a sample "
                '(reduction="none", then a mean over features)',
                shape=tuple(losses.shape),
            )
        return losses

    def both(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Losses `(*lead, batch)` and their gradients by the output `(*lead, batch, output)`, outside any graph."""
        with torch.enable_grad():
            leaf = output.detach().requires_grad_()
            losses = self.values(leaf, target)
            (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        return losses.detach(), gradient


class SquaredError(Loss):
    """The mean of squares over the outputs of a sample."""

    name = "mse"

    def __init__(self) -> None:
        super().__init__(lambda output, target: (output - target).square().mean(-1))

    def check(self, output: Tensor, target: Tensor) -> None:
        if output.shape != target.shape:
            raise ShapeError(
                f"the target has shape {tuple(target.shape)}, the output {tuple(output.shape)}; broadcasting one to the other is hardly meant",
                target=tuple(target.shape),
                output=tuple(output.shape),
            )

    def both(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        error = output - target
        return torch.linalg.vecdot(error, error) / error.shape[-1], error * (2 / error.shape[-1])


class CrossEntropy(Loss):
    """The cross entropy of the softmax of the outputs with one class index a sample."""

    name = "cross_entropy"

    def __init__(self) -> None:
        super().__init__(lambda output, target: F.cross_entropy(output.flatten(0, -2), target.flatten(), reduction="none").view(target.shape))

    def check(self, output: Tensor, target: Tensor) -> None:
        if target.shape != output.shape[:-1]:
            raise ShapeError(
                f"class indices of shape {tuple(output.shape[:-1])} were expected, got {tuple(target.shape)}",
                target=tuple(target.shape),
                output=tuple(output.shape),
            )
        if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
            raise DTypeError(f"class indices are integers, got {target.dtype}; one-hot targets go through argmax(-1)", dtype=target.dtype)

    def both(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logarithms = torch.log_softmax(output, -1)
        index = target.long().unsqueeze(-1)
        gradient = logarithms.exp().scatter_add_(-1, index, torch.full_like(logarithms[..., :1], -1.0))
        return -logarithms.gather(-1, index).squeeze(-1), gradient


def loss_of(choice: str | Loss | SampleLoss) -> Loss:
    """The loss called `choice` ("mse" or "cross_entropy"), or one made of a function.

    Raises:
        ConfigError: there is none of that name.
    """
    if isinstance(choice, Loss):
        return choice
    if callable(choice):
        return Loss(choice)
    named: dict[str, type[SquaredError] | type[CrossEntropy]] = {"mse": SquaredError, "cross_entropy": CrossEntropy}
    if choice not in named:
        raise ConfigError(f"loss={choice!r} is neither of {', '.join(named)}; a function (output, target) -> losses (batch,) works too", loss=choice)
    return named[choice]()
