"""Decisions on the host: numbers of a tensor that Python branches on, also inside `torch.func.vmap`.

Under vmap a tensor stands for several instances, and `.item()` is refused. The operator below reduces over the instances too, so that
a branch is taken when any of them needs it; what each instance does inside the branch is masked by its own flags.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pararnn.transforms import inside_transform


@torch.library.custom_op("pararnn::largest_of_all", mutates_args=())
def _largest(values: Tensor) -> Tensor:
    return values.amax()


@_largest.register_fake
def _(values: Tensor) -> Tensor:
    return values.new_empty(())


@_largest.register_vmap
def _(info: Any, in_dims: Any, values: Tensor) -> tuple[Tensor, None]:
    return _largest(values), None


def largest(values: Tensor) -> float:
    """The largest of `values`, over every instance; minus infinity for none."""
    if not values.numel():
        return float("-inf")
    return float(_largest(values) if inside_transform() else values.amax())


def smallest(values: Tensor) -> float:
    """The smallest of `values`, over every instance; infinity for none."""
    return -largest(-values)


def any_true(flags: Tensor) -> bool:
    """Whether any flag is set, in any instance."""
    return bool(flags.numel()) and bool(_largest(flags.to(torch.int32)) if inside_transform() else flags.any())
