"""Residual networks, tied and untied: the baselines of the paper, and the same as blocks with bucket paths."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError
from pararnn_nanode.block import NANODE
from pararnn_nanode.fields.base import Field, paths_of
from pararnn_nanode.fields.dense import DenseField
from pararnn_nanode.integrate.methods import advance
from pararnn_nanode.integrate.schedule import schedule
from pararnn_nanode.paths.base import Span, WeightPath
from pararnn_nanode.paths.bucket import BucketPath
from pararnn_nanode.paths.constant import ConstantPath
from pararnn_nanode.paths.linear import LinearPath, at_least


class ResidualStack(nn.Module):
    """`x <- x + h f(x)`, `steps` times, with one layer for all steps (tied, "Con-ResNet") or one for each (untied, "Uncon-ResNet").

    It is Euler's method with weights held for the whole span or for a step, so `to_nanode` gives a block with bucket paths of 1 or `steps` pieces
    and equal outputs.

    Args:
        layer: channels of a dense layer with a bias; or a function without arguments that makes a new field with constant weights.
        steps: residual layers one after another.
        tied: whether all steps share one layer.
        span: times of the first state and of the last; `h` is its length over `steps`.

    Source: Davis et al., "Time dependence in non-autonomous neural ODEs" (2020), arXiv 2005.01906.
    """

    def __init__(self, layer: int | Callable[[], Field], steps: int, *, tied: bool = False, span: Span = (0.0, 1.0)) -> None:
        super().__init__()
        self.steps = at_least(1, "steps", steps)
        self.tied = tied
        self.span: Span = (float(span[0]), float(span[1]))
        layers = [_dense(layer) if isinstance(layer, int) else layer() for _ in range(1 if tied else steps)]
        for field in layers:
            for name, path in paths_of(field):
                if not isinstance(path, ConstantPath):
                    raise ConfigError(f"a residual layer has constant weights, but {name} is a {type(path).__name__}; make layers with ConstantPath")
        self.layers: nn.ModuleList = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        """The state `(*batch, ...)` after all steps."""
        start, end = self.span
        width = (end - start) / self.steps
        times = torch.tensor([start + (end - start) * (k / self.steps) for k in range(self.steps)], dtype=torch.float64, device=x.device)
        # A tied layer is read for all steps at once, as the block reads it, so that its gradient too is one sum over the steps.
        layers = [cast(Field, layer) for layer in self.layers]
        read = [layers[0].weights(times)] if self.tied else [layer.weights(t[None]) for layer, t in zip(layers, times, strict=True)]
        rows = [row for weights in read for row in zip(*(leaf.unbind(0) for leaf in weights), strict=True)]
        for k, weights in enumerate(rows):
            x = advance(x, layers[0 if self.tied else k].evaluate(x, weights), width)
        return x

    def to_nanode(self) -> NANODE:
        """The block with bucket paths, as many pieces as there are layers, which gives the same; its parameters are copies.

        Raises:
            ConfigError: untied layers have parameters that no path holds.
        """
        first = cast(Field, self.layers[0])
        held = {id(parameter) for _, path in paths_of(first) for parameter in path.parameters()}
        loose = [name for name, parameter in first.named_parameters() if id(parameter) not in held]
        if loose and not self.tied:
            raise ConfigError(f"{', '.join(loose)} of each layer belong to no weight path, so no bucket path can hold one of each; use ConstantPath")

        def stacked(name: str, path: WeightPath) -> WeightPath:
            weights = [layer.get_submodule(name).get_parameter("coefficients").detach() for layer in self.layers]
            bucket = BucketPath(path.shape, len(weights), span=self.span, device=weights[0].device, dtype=weights[0].dtype)
            with torch.no_grad():
                bucket.coefficients.copy_(torch.cat(weights))
            return bucket

        return NANODE(_replaced(first, stacked), self.steps, self.span)

    @classmethod
    def from_nanode(cls, block: NANODE) -> ResidualStack:
        """The stack with the weights that `block` reads at its steps; tied where none of its paths moves. Its parameters are copies.

        Raises:
            ConfigError: the method of `block` is not Euler's.
        """
        if block.method != "euler":
            raise ConfigError(f"a residual stack is a walk by method='euler', the block has method={block.method!r}; make one with euler first")
        knots = schedule(steps=block.steps, span=block.span).knots
        anchors = torch.minimum(knots[:-1], knots[1:])
        tied = all(path.n_matrices == 1 and isinstance(path, LinearPath) for _, path in paths_of(block.field))

        def layer(k: int) -> Field:
            def frozen(name: str, path: WeightPath) -> WeightPath:
                with torch.no_grad():
                    weight = path.grid(knots[k], anchors[k])
                    constant = ConstantPath(path.shape, span=block.span, device=weight.device, dtype=weight.dtype)
                    constant.coefficients[0].copy_(weight)
                return constant

            return _replaced(block.field, frozen)

        layers = iter([layer(k) for k in range(1 if tied else block.steps)])
        return cls(lambda: next(layers), block.steps, tied=tied, span=block.span)

    def extra_repr(self) -> str:
        """Steps, tied or not, and span."""
        return f"steps={self.steps}, tied={self.tied}, span={self.span}"


def _dense(dim: int) -> DenseField:
    return DenseField(dim, ConstantPath((dim, dim)), bias=ConstantPath(dim))


def _replaced(field: Field, replacement: Callable[[str, WeightPath], WeightPath]) -> Field:
    """A copy of `field` with every path replaced; a path in two places stays one path."""
    twin = copy.deepcopy(field)
    made: dict[int, WeightPath] = {}
    for name, path in list(paths_of(twin)):
        new = made.setdefault(id(path), replacement(name, path)) if id(path) not in made else made[id(path)]
        twin.set_submodule(name, new)
    return twin
