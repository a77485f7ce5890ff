"""What a forward pass launches, worked out once for each program, launch, and layout of the tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from pararnn.compiler.gpu.calls import Kernel


@dataclass
class Prepared:
    """The kernels of one way to solve tensors of one layout.

    Attributes:
        kept: what is told by its address and so has to stay alive.
        launches: the kernels in the order in which they are launched, each with the names of the workspaces that follow the operands.
        shapes: of the workspaces, with their dtypes; `states` and `record` are among them.
        arguments: what a kernel begins with, row strides filled in.
        places: where in it the initial state and the operands go.
        copies: the operands that have to be copied first.
        is_ready: whether every kernel is compiled.
    """

    kept: tuple[Any, ...]
    launches: list[tuple[Kernel, tuple[str, ...]]]
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]]
    arguments: list[Any]
    places: list[int]
    copies: list[int]
    is_ready: bool = field(default=False)

    @cached_property
    def spaces(self) -> tuple[tuple[str, tuple[int, ...], tuple[int, ...], torch.dtype], ...]:
        """Names, shapes, strides and dtypes of the workspaces."""
        return tuple((name, shape, _strides(shape), dtype) for name, (shape, dtype) in self.shapes.items())


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Those of a contiguous tensor."""
    return tuple(math.prod(shape[index + 1 :]) for index in range(len(shape)))
