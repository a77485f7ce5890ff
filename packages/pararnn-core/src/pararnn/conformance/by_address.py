"""Triton's interpreter takes tensors where compiled kernels take addresses; this makes it take both, so that what passes addresses runs on a CPU.

For tests of packages that launch kernels of the compiler; not part of the public interface.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pararnn.compiler.gpu.calls import Kernel

if TYPE_CHECKING:
    import pytest


def launch_by_address(patch: pytest.MonkeyPatch) -> list[int]:
    """From the second launch of a kernel on, what is passed for its tensors are addresses; gives the list of how many arguments were such."""
    counted: list[int] = []

    def call(kernel: Kernel, memory: Sequence[Any]) -> None:
        if kernel.launch is None:
            kernel.function[kernel.grid](*memory, *kernel.numbers, **kernel.options)
            kinds = [one.dtype if isinstance(one, Tensor) else None for one in memory]

            def launch(*arguments: Any) -> None:
                given = [_at(one, kind) if kind is not None else one for one, kind in zip(arguments, kinds, strict=False)]
                kernel.function[kernel.grid](*given, *kernel.numbers, **kernel.options)

            kernel.launch = launch
            return
        if any(isinstance(one, Tensor) for one in memory):
            raise AssertionError(f"a kernel that was launched before was given a tensor: {memory}; pass its address")
        counted.append(len(memory))
        kernel.launch(*memory)

    patch.setattr(Kernel, "__call__", call)
    return counted


def _at(address: int, dtype: torch.dtype) -> Tensor:
    """A tensor of one number at `address`; kernels go on from there."""
    return torch.frombuffer((ctypes.c_char * dtype.itemsize).from_address(address), dtype=dtype)
