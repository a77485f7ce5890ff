"""From whatever shapes and dtypes a caller has to the one form that backends take, and back.

A backend sees numerators `(groups, copies, ...)` and poles `(copies, state)`. `groups` are the leading dimensions in which only the
numerators vary: what is costly about the poles is shared among them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pararnn.errors import DTypeError, ShapeError

NARROW = (torch.float16, torch.bfloat16, torch.complex32)


def common_dtype(**tensors: Tensor) -> torch.dtype:
    """The complex dtype in which `tensors` are combined: complex64, or complex128 where one of them has double precision.

    Raises:
        DTypeError: an argument is no tensor of numbers.
    """
    dtype = torch.complex64
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise DTypeError(f"{name} is {type(tensor).__name__}; pass a tensor")
        if tensor.dtype == torch.bool or not (tensor.is_floating_point() or tensor.is_complex()) or tensor.dtype.itemsize < 2:
            raise DTypeError(f"{name} is {tensor.dtype}; pass a tensor of real or complex floating-point numbers")
        if tensor.dtype not in NARROW:
            dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def real_of(dtype: torch.dtype) -> torch.dtype:
    """The real dtype of a result of `common_dtype`; torch's own method cannot be traced."""
    return torch.float64 if dtype == torch.complex128 else torch.float32


def whole_number(length: object, name: str) -> int:
    """`length` as an int; a symbolic one of `torch.compile` becomes a plain one, and with it a graph of its own.

    Raises:
        ShapeError: it is no whole number.
    """
    try:
        return operator.index(length)  # type: ignore[arg-type]
    except TypeError as error:
        raise ShapeError(f"{name}={length!r} is no whole number; pass how many steps there are, as an int") from error


def check_axes(**tensors: Tensor) -> None:
    """Raise `ShapeError` for a tensor without a last dimension, or for tensors on different devices."""
    for name, tensor in tensors.items():
        if tensor.ndim == 0:
            raise ShapeError(f"{name} has no dimensions; its last one is needed")
    devices = {tensor.device for tensor in tensors.values()}
    if len(devices) > 1:
        where = ", ".join(f"{name} on {tensor.device}" for name, tensor in tensors.items())
        raise ShapeError(f"the tensors are on different devices ({where}); move them to one")


@dataclass(frozen=True)
class Leading:
    """Broadcast leading dimensions, divided into those of the numerators alone and those of the poles; `flat` leaves the axis of groups out."""

    groups: tuple[int, ...]
    copies: tuple[int, ...]
    flat: bool = False

    @classmethod
    def of(cls, numerators: Sequence[int], *poles: Sequence[int]) -> Leading:
        """The common leading dimensions of `numerators` and `poles` (both without their last one).

        Raises:
            ShapeError: they cannot be broadcast.
        """
        try:
            full = torch.broadcast_shapes(tuple(numerators), *map(tuple, poles))
        except RuntimeError as error:
            shapes = ", ".join(str(tuple(shape)) for shape in (numerators, *poles))
            raise ShapeError(f"the leading dimensions {shapes} cannot be broadcast; those that differ must be 1 or absent") from error
        longest = max(_significant(shape) for shape in poles)
        split = len(full) - longest
        return cls(tuple(full[:split]), tuple(full[split:]))

    def numerators(self, tensor: Tensor) -> Tensor:
        """`tensor` as `(groups, copies, last)`, or as `(copies, last)` where `flat`."""
        shape = (*(() if self.flat else (math.prod(self.groups),)), math.prod(self.copies), tensor.shape[-1])
        whole = _resolved(tensor)
        return whole if whole.shape == shape else whole.expand(*self.groups, *self.copies, tensor.shape[-1]).reshape(shape)

    def poles(self, tensor: Tensor) -> Tensor:
        """`tensor` as `(copies, last)`."""
        shape = (math.prod(self.copies), tensor.shape[-1])
        whole = _resolved(tensor)
        if whole.shape == shape:
            return whole
        own = whole.reshape(tensor.shape[max(0, tensor.ndim - 1 - len(self.copies)) :])
        return own.expand(*self.copies, tensor.shape[-1]).reshape(shape)

    def shared(self, tensor: Tensor) -> Tensor:
        """`tensor` as `(1, last)` where all copies have the same, else as `(copies, last)`."""
        return _resolved(tensor).reshape(1, tensor.shape[-1]) if _significant(tensor.shape[:-1]) == 0 else self.poles(tensor)

    def restore(self, result: Tensor) -> Tensor:
        """A result `(groups, copies, last)` with the caller's leading dimensions."""
        shape = (*self.groups, *self.copies, result.shape[-1])
        return result if result.shape == shape else result.reshape(shape)


def _resolved(tensor: Tensor) -> Tensor:
    """`tensor` with its numbers in memory as they are: kernels that read memory would miss a conjugation or a sign that torch only notes."""
    # Asking is cheaper than calling two operations that do nothing, but the compiler cannot trace it.
    lazy = torch.compiler.is_compiling() or tensor.is_conj() or tensor.is_neg()
    return tensor.resolve_conj().resolve_neg() if lazy else tensor


def _significant(shape: Sequence[int]) -> int:
    """How many trailing dimensions there are up to the first that is not 1."""
    return next((len(shape) - index for index, size in enumerate(shape) if size != 1), 0)
