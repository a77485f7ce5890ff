"""Losses of one step, each with the gradient by the output: one number a sample, nothing divided by the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from pararnn.errors import ConfigError, DTypeError, InputError, ShapeError

SampleLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""`(output (*lead, batch, output), target) -> losses (*lead, batch)`, differentiable by the output."""


class Loss:
    """A loss for each sample, `values(output, target)`, and `both`, which gives its gradient by the output too."""

    name = "custom"

    def __init__(self, function: SampleLoss) -> None:
        self.function = function

    def check(self, output: Tensor, target: Tensor) -> None:
        """Raise if `target` cannot be one for `output`; here anything can that lies on its device."""
        if target.device != output.device:
            raise DTypeError(f"the target is on {target.device}, the output on {output.device}; move the target", device=target.device)

    def values(self, output: Tensor, target: Tensor) -> Tensor:
        """Losses `(*lead, batch)`, differentiable by autograd."""
        losses = self.function(output, target)
        if losses.shape != output.shape[:-1]:
            raise ShapeError(
                f"the loss gave shape {tuple(losses.shape)} for outputs {tuple(output.shape)}; it has to give one number a sample, "
                f'{tuple(output.shape[:-1])} (reduction="none", then a mean over features); loss="mse" and loss="cross_entropy" are built in',
                shape=tuple(losses.shape),
            )
        return losses

    def both(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Losses `(*lead, batch)` and their gradients by the output `(*lead, batch, output)`, outside any graph."""
        with torch.enable_grad():
            leaf = output.detach().requires_grad_()
            losses = self.values(leaf, target)
            if not losses.requires_grad:
                raise ConfigError("the loss does not depend on the output by operations that autograd knows; look for detach() and .data in it")
            (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        return losses.detach(), gradient


class SquaredError(Loss):
    """The mean of squares over the outputs of a sample."""

    name = "mse"

    def __init__(self) -> None:
        super().__init__(_mean_of_squares)

    def check(self, output: Tensor, target: Tensor) -> None:
        super().check(output, target)
        if output.shape != target.shape:
            raise ShapeError(
                f"the target has shape {tuple(target.shape)}, the output {tuple(output.shape)}; broadcasting one to the other is hardly meant",
                target=tuple(target.shape),
                output=tuple(output.shape),
            )
        if target.dtype != output.dtype and (not target.is_floating_point() or torch.promote_types(target.dtype, output.dtype) != output.dtype):
            raise DTypeError(
                f"the target is {target.dtype}, the output {output.dtype}; convert it with target.to({output.dtype})", dtype=target.dtype
            )

    def both(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        error = output - target
        return torch.linalg.vecdot(error, error) / error.shape[-1], error * (2 / error.shape[-1])


class CrossEntropy(Loss):
    """The cross entropy of the softmax of the outputs with one class index a sample."""

    name = "cross_entropy"

    def __init__(self) -> None:
        super().__init__(_cross_entropy)

    def check(self, output: Tensor, target: Tensor) -> None:
        super().check(output, target)
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
        try:
            losses = -logarithms.gather(-1, index).squeeze(-1)
        except (RuntimeError, IndexError) as error:
            low, high, count = int(target.min()), int(target.max()), output.shape[-1]
            raise InputError(
                f"class indices run from {low} to {high}, the network has {count} outputs, so 0 to {count - 1} are classes; rows without a class go "
                "into mask, or have weight 0",
                low=low,
                high=high,
            ) from error
        return losses, logarithms.exp().scatter_add_(-1, index, torch.full_like(logarithms[..., :1], -1.0))


def _mean_of_squares(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean(-1)


def _cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, -2), target.flatten().long(), reduction="none").view(target.shape)


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
