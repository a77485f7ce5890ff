"""The adjoint equation of a field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from pararnn_nanode.fields.base import Field, Weights

Parts: TypeAlias = tuple[Tensor, ...]


class Augmented(Field):
    """State, adjoint and the gradients of `tensors`, in one vector."""

    def __init__(self, field: Field, state: Tensor, tensors: Parts) -> None:
        super().__init__()
        self.field = field
        self.tensors = tensors
        likes = (state, state, *tensors)
        self.layout = [(like.shape, like.dtype, like.numel()) for like in likes]
        self.dtype = state.dtype
        for tensor in tensors:
            self.dtype = torch.promote_types(self.dtype, tensor.dtype)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """One vector."""
        return torch.cat([part.reshape(-1).to(self.dtype) for part in parts])

    def split(self, flat: Tensor) -> Parts:
        """State, adjoint and gradients; real parts where only those exist."""
        pieces = flat.split([size for _, _, size in self.layout])
        found = []
        for piece, (shape, dtype, _) in zip(pieces, self.layout, strict=True):
            real = piece.is_complex() and not dtype.is_complex
            found.append((piece.real if real else piece).to(dtype).view(shape))
        return tuple(found)

    def weights(self, times: Tensor, anchors: Tensor | None = None, u: Tensor | None = None) -> Weights:
        return (times, times if anchors is None else anchors)

    def evaluate(self, x: Tensor, weights: Weights) -> Tensor:
        time, anchor = weights
        state, adjoint, *_ = self.split(x)
        with torch.enable_grad():
            state = state.detach().requires_grad_()
            leaves = self.field.weights(time.reshape(1), anchor.reshape(1))
            slope = self.field.evaluate(state, tuple(leaf[0] for leaf in leaves))
            grads: Sequence[Tensor | None] = [None] * (1 + len(self.tensors))
            if slope.requires_grad:
                # The graph of tensors outside of the field is needed in every evaluation.
                grads = torch.autograd.grad(slope, (state, *self.tensors), adjoint.to(slope.dtype), allow_unused=True, retain_graph=True)
        zeros = (torch.zeros(shape, dtype=dtype, device=x.device) for shape, dtype, _ in self.layout[1:])
        return self.join((slope.detach(), *(zero if grad is None else -grad for grad, zero in zip(grads, zeros, strict=True))))
