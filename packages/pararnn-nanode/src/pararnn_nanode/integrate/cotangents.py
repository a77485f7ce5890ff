"""Evaluations on a walk backwards: each on a graph of its own, whose cotangents of weights are gathered and handed to parameters block by block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from pararnn_nanode.fields.base import Weights
from pararnn_nanode.integrate.methods import Equation, Width


class Pullback(Protocol):
    """What takes the cotangent of an evaluation back to the state."""

    def __call__(self, cotangent: Tensor, share: Width = 1.0) -> Tensor:
        """The cotangent of the state; adds `share` times those of weights and parameters to their sums."""
        ...


class Gradients:
    """Sums of cotangents of a list of variables."""

    def __init__(self, variables: Sequence[Tensor]) -> None:
        self.variables = tuple(variables)
        self.sums: list[Tensor | None] = [None] * len(self.variables)

    def add(self, cotangents: Sequence[Tensor | None]) -> None:
        """Add one cotangent, or none, for each variable."""
        for k, cotangent in enumerate(cotangents):
            if cotangent is not None:
                present = self.sums[k]
                self.sums[k] = cotangent if present is None else present + cotangent


class Block:
    """The weights of a block of steps, each read a variable of its own.

    Args:
        leaves: weights `(reads, ...)`, on the graph of the variables of `gradients`.
    """

    def __init__(self, equation: Equation, leaves: Weights, gradients: Gradients) -> None:
        self._equation = equation
        self._leaves = leaves
        self._gradients = gradients
        cut = ([row.requires_grad_(leaf.requires_grad) for row in leaf.detach().unbind(0)] for leaf in leaves)
        self._reads: list[Weights] = list(zip(*cut, strict=True))
        self._moving = tuple(k for k, leaf in enumerate(leaves) if leaf.requires_grad)
        self._cotangents: dict[int, list[Tensor | None]] = {k: [None] * leaves[k].shape[0] for k in self._moving}

    def evaluate(self, read: int, x: Tensor) -> tuple[Tensor, Pullback]:
        """The field at `x` with the weights of a read, and what takes its cotangent to that of `x`, adding those of weights and parameters."""
        formula = self._equation.differentiate(x, self._reads[read])
        if formula is None:
            return self._by_autograd(read, x)
        slope, derive = formula

        def pull(cotangent: Tensor, share: Width = 1.0) -> Tensor:
            if isinstance(share, Tensor):
                self._add(read, derive(cotangent * share, self._moving)[1], 1.0)
                return derive(cotangent, ())[0]
            by_point, by_weights = derive(cotangent, self._moving if share != 0 else ())
            self._add(read, by_weights, share)
            return by_point

        return slope, pull

    def _by_autograd(self, read: int, x: Tensor) -> tuple[Tensor, Pullback]:
        point = x.detach().requires_grad_()
        weights = self._reads[read]
        with torch.enable_grad():
            slope = self._equation.evaluate(point, weights)

        def pull(cotangent: Tensor, share: Width = 1.0) -> Tensor:
            if not slope.requires_grad:
                return torch.zeros_like(cotangent)
            others = (*(weights[k] for k in self._moving), *self._gradients.variables)
            cotangent = cotangent.to(slope.dtype)
            if isinstance(share, Tensor):
                # Samples with lengths of their own: what their sum gets of each is not known once they are summed.
                shares = torch.autograd.grad(slope, others, cotangent * share, allow_unused=True, retain_graph=True) if others else ()
                self._add(read, shares, 1.0)
                others = ()
            elif share == 0:
                others = ()
            by_point, *rest = torch.autograd.grad(slope, (point, *others), cotangent, allow_unused=True)
            self._add(read, rest, 1.0 if isinstance(share, Tensor) else share)
            return torch.zeros_like(cotangent) if by_point is None else by_point

        return slope.detach(), pull

    def _add(self, read: int, shares: Sequence[Tensor | None], factor: float) -> None:
        if not shares:
            return
        scaled = shares if factor == 1 else [None if by is None else by * factor for by in shares]
        for k, by_weight in zip(self._moving, scaled, strict=False):
            present = self._cotangents[k][read]
            self._cotangents[k][read] = by_weight if present is None else present if by_weight is None else present + by_weight
        self._gradients.add(scaled[len(self._moving) :])

    def push(self) -> None:
        """Hand the gathered cotangents of weights on to the variables."""
        if not (self._moving and self._gradients.variables):
            return
        leaves, cotangents = [], []
        for k, found in self._cotangents.items():
            if any(by is not None for by in found):
                leaves.append(self._leaves[k])
                cotangents.append(torch.stack([torch.zeros_like(self._leaves[k][0]) if by is None else by for by in found]))
        if leaves:
            self._gradients.add(torch.autograd.grad(leaves, self._gradients.variables, cotangents, allow_unused=True))
