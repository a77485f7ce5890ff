"""What is handed to a library: addresses and strides of tensors, in the order of the C structures in `csrc`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from pararnn.compiler.program import Kind, Program

CARRIES = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float32, torch.float64: torch.float64}
NOWHERE = (0, 0, 0, 0)


def in_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in `dtype`; to ask is several times quicker than to convert in vain."""
    return tensor if tensor.dtype is dtype else tensor.to(dtype)


def carried(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in the dtype of the carry, its negation made true where it is only noted."""
    tensor = in_dtype(tensor, dtype)
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def address(tensor: Tensor | None) -> int:
    """Where a tensor begins, 0 for none."""
    return 0 if tensor is None else tensor.data_ptr()


def places(program: Program, operands: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """Address of each operand, and its strides by row, step and channel; those that do not run along the sequence have one dimension."""
    found: list[tuple[int, ...]] = []
    for kind, operand in zip(program.kinds, operands, strict=True):
        if kind is Kind.ELEMENT:
            found.append(of_elements(operand))
        elif kind is Kind.STEP:
            row, time, _ = operand.stride()
            found.append((operand.data_ptr(), row, time, 0))
        else:
            found.append((operand.data_ptr(), 0, 0, operand.stride(0) if kind is Kind.CHANNEL else 0))
    return found


def of_elements(tensor: Tensor) -> tuple[int, ...]:
    """Address and strides of `(rows, time, state)`."""
    return tensor.data_ptr(), *tensor.stride()


def of_rows(tensor: Tensor) -> tuple[int, ...]:
    """Address and strides of `(sequences, state)`."""
    row, channel = tensor.stride()
    return tensor.data_ptr(), row, 0, channel


def packed(*parts: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """All numbers in one structure of 64-bit integers."""
    numbers = [number for part in parts for number in part]
    return (ctypes.c_int64 * len(numbers))(*numbers)
