"""A field evaluated outside of any graph, which may still differentiate inside itself."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn_nanode.fields.base import Field, Weights


class Alone(Field):
    """Values of `field` without a graph; fields that call `torch.autograd.grad` on their state find one that requires grad."""

    def __init__(self, field: Field) -> None:
        super().__init__()
        self.field = field

    def weights(self, times: Tensor, anchors: Tensor | None = None, u: Tensor | None = None) -> Weights:
        return self.field.weights(times, anchors, u)

    def evaluate(self, x: Tensor, weights: Weights) -> Tensor:
        if torch._C._functorch.is_functorch_wrapped_tensor(x):
            return self.field.evaluate(x, weights)
        with torch.enable_grad():
            return self.field.evaluate(x.detach().requires_grad_(), weights).detach()

    def edges(self) -> tuple[float, ...]:
        return self.field.edges()
