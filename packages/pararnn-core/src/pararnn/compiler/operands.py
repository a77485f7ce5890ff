"""Tensors without data that stand for the operands of a step while it is traced."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pararnn.compiler.numbers import Number
from pararnn.compiler.program import Kind
from pararnn.compiler.recording import Recorder


class Operands:
    """The operands of a step, and what each is to the recorder.

    Args:
        state: its last size, dtype and device are those of the states.
        rows: size of the rows while tracing.
        recorder: told what each tensor stands for.
    """

    def __init__(self, state: Tensor, rows: int, recorder: Recorder) -> None:
        self._device, self._channels, self._rows, self._recorder = state.device, state.shape[-1], rows, recorder
        self.kinds: dict[str, Kind] = {}
        self.tensors: dict[str, Tensor] = {}

    def full(self, name: str) -> Tensor:
        """`(rows, state)`, such as the state."""
        return self._stand(name, (self._rows, self._channels), self._recorder.dtype)

    def leaf(self, name: str, leaf: Tensor, *, timed: bool) -> Tensor:
        """What stands for a leaf of the drive; one whose shape no operand can have is an obstacle."""
        shape = tuple(leaf.shape)
        kind = self._kind_of_timed(shape) if timed else self._kind(shape)
        standing = self._stand(name, (self._rows, *shape[1:]) if timed else shape, leaf.dtype)
        if kind is None:
            has = f"{tuple(shape[1:])} numbers a step" if timed else f"shape {shape}"
            self._recorder.refuse(
                f"leaf {name[1:]} of the drive has {has}, where the state has {self._channels} channels: it must hold one number per channel, or one "
                "in all"
            )
            self._recorder.breaks(standing)
        else:
            self.kinds[name] = kind
        return standing

    def parameter(self, name: str, tensor: Tensor) -> Tensor:
        """What stands for a parameter; its shape matters once the step reads it."""
        kind = self._kind(tuple(tensor.shape))
        if kind is not None:
            self.kinds[name] = kind
        return self._stand(name, tuple(tensor.shape), tensor.dtype)

    def sum_of(self, name: str, gradient: Number) -> str | float | None:
        """The gradient of operand `name` as a number of one channel and one step; None where it is no sum of such."""
        if gradient.value is None or gradient.is_zero:
            return gradient.value
        kind = self.kinds.get(name, Kind.ELEMENT)
        missing = {Kind.ELEMENT: (), Kind.STEP: ("channels",), Kind.CHANNEL: ("rows",), Kind.SCALAR: ("channels", "rows")}[kind]
        wanted = frozenset(missing) if self._channels != 1 else frozenset(missing) - {"channels"}
        return gradient.value if gradient.summed == wanted else None

    def _kind_of_timed(self, shape: tuple[int, ...]) -> Kind | None:
        if len(shape) != 2:
            return None
        return {self._channels: Kind.ELEMENT, 1: Kind.STEP}.get(shape[1]) if self._channels != 1 else (Kind.ELEMENT if shape[1] == 1 else None)

    def _kind(self, shape: tuple[int, ...]) -> Kind | None:
        if [size for size in shape if size != 1] == ([self._channels] if self._channels != 1 else []):
            return Kind.CHANNEL if shape else Kind.SCALAR
        return Kind.SCALAR if all(size == 1 for size in shape) else None

    def _stand(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        carry = self._recorder.dtype
        is_narrow = dtype.is_floating_point and dtype.itemsize <= carry.itemsize
        tensor = torch.empty(shape, dtype=carry if is_narrow else dtype, device=self._device)
        tensor.requires_grad_(tensor.is_floating_point())
        self._recorder.operand(name, tensor)
        self.tensors[name] = tensor
        return tensor


def differentiable(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those that can have a gradient."""
    return {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}


def placed(drive: Any, standing: list[Tensor | None]) -> Any:
    """The drive with other tensors; leaves that are None stay so."""
    if isinstance(drive, Tensor):
        return standing[0]
    return drive._make(standing) if hasattr(drive, "_make") else tuple(standing)
