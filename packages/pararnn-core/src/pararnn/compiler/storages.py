"""Questions about tensors that a recorder follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from pararnn.compiler.numbers import Number, constant


def storage(tensor: Tensor) -> int:
    """The address of what a tensor and its views share."""
    return int(tensor.untyped_storage()._cdata)


def shares(result: Tensor, args: Sequence[Any]) -> bool:
    """Whether `result` is a view of an argument."""
    return any(isinstance(arg, Tensor) and storage(arg) == storage(result) for arg in args)


def tensors_in(args: Sequence[Any]) -> list[Tensor]:
    """The tensors among arguments, and in lists of them."""
    found: list[Tensor] = []
    for arg in args:
        found += [one for one in (arg if isinstance(arg, (list, tuple)) else (arg,)) if isinstance(one, Tensor)]
    return found


def keeps_all(plain: str, source: Tensor, result: Tensor) -> bool:
    """Whether a part, taken by the operation `plain`, is the whole."""
    # By strides the same place can be read many times, and others never.
    return source.numel() == result.numel() and (plain != "as_strided" or (source.shape, source.stride()) == (result.shape, result.stride()))


def the_number(tensor: Tensor) -> Number | None:
    """The number of a tensor that was just made from one, as `torch.tensor(0.5)` is."""
    if tensor.numel() != 1 or tensor.is_complex() or isinstance(tensor, FakeTensor):
        return None
    with _disable_current_modes():
        return constant(tensor.item())


def short(dtype: torch.dtype) -> str:
    """A dtype without the name of its package."""
    return str(dtype).removeprefix("torch.")
