"""Tensors without data that stand for the operands of a step while it is traced."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pararnn.compiler.labels import MOST, parts_of
from pararnn.compiler.numbers import BROKEN, Number
from pararnn.compiler.program import Kind
from pararnn.compiler.recording import Recorder


class Operands:
    """The operands of a step, and what each is to the recorder.

    A tensor has one operand of its own name, or several, which its name leads to in `parts`; none where its shape is that of no operand.

    Args:
        state: its last size, dtype and device are those of the states.
        rows: size of the rows while tracing.
        recorder: told what each tensor stands for.
    """

    def __init__(self, state: Tensor, rows: int, recorder: Recorder) -> None:
        self._device, self._channels, self._rows, self._recorder = state.device, state.shape[-1], rows, recorder
        self.kinds: dict[str, Kind] = {}
        self.tensors: dict[str, Tensor] = {}
        self.parts: dict[str, tuple[str, ...]] = {}

    def full(self, name: str) -> Tensor:
        """`(rows, state)`, such as the state."""
        return self._stand(name, (self._rows, self._channels), self._recorder.dtype)

    def leaf(self, name: str, leaf: Tensor, *, timed: bool) -> Tensor:
        """What stands for a leaf of the drive; one whose shape no operand can have is an obstacle."""
        shape = tuple(leaf.shape)
        standing = self._stand(name, (self._rows, *shape[1:]) if timed else shape, leaf.dtype, timed=timed)
        if not self.parts[name]:
            has = f"{tuple(shape[1:])} numbers a step" if timed else f"shape {shape}"
            self._recorder.refuse(
                f"leaf {name[1:]} of the drive has {has}, where the state has {self._channels} channels: it must hold one number per channel, up to "
                f"{MOST} per channel side by side, or one in all"
            )
            self._recorder.standing.put(standing, BROKEN)
        return standing

    def parameter(self, name: str, tensor: Tensor) -> Tensor:
        """What stands for a parameter; its shape matters once the step reads it."""
        return self._stand(name, tuple(tensor.shape), tensor.dtype, timed=False)

    def numbers(self, name: str, gradient: Tensor) -> dict[str, Number]:
        """What the gradient by a tensor is by each of its operands."""
        parts = self.parts.get(name, (name,))
        if len(parts) == 1:
            return {name: self._recorder.number(gradient)}
        timed = self.kinds[parts[0]].is_timed
        return dict(zip(parts, self._recorder.wide.numbers(gradient, len(parts), timed=timed), strict=True))

    def sum_of(self, name: str, gradient: Number) -> str | float | None:
        """The gradient of operand `name` as a number of one channel and one step; None where it is no sum of such."""
        if gradient.value is None or gradient.is_zero:
            return gradient.value
        kind = self.kinds.get(name, Kind.ELEMENT)
        missing = {Kind.ELEMENT: (), Kind.STEP: ("channels",), Kind.CHANNEL: ("rows",), Kind.SCALAR: ("channels", "rows")}[kind]
        wanted = frozenset(missing) if self._channels != 1 else frozenset(missing) - {"channels"}
        return gradient.value if gradient.summed == wanted else None

    def _kind_of_timed(self, shape: tuple[int, ...]) -> Kind | None:
        if shape[1:] == (self._channels,):
            return Kind.ELEMENT
        return Kind.STEP if shape[1:] == (1,) else None

    def _kind(self, shape: tuple[int, ...]) -> Kind | None:
        if [size for size in shape if size != 1] == ([self._channels] if self._channels != 1 else []):
            return Kind.CHANNEL if shape else Kind.SCALAR
        return Kind.SCALAR if all(size == 1 for size in shape) else None

    def _stand(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, *, timed: bool = True) -> Tensor:
        carry = self._recorder.dtype
        is_narrow = dtype.is_floating_point and dtype.itemsize <= carry.itemsize
        tensor = torch.empty(shape, dtype=carry if is_narrow else dtype, device=self._device)
        tensor.requires_grad_(tensor.is_floating_point())
        self.tensors[name] = tensor
        kind = self._kind_of_timed(shape) if timed else self._kind(shape)
        count = parts_of(shape[1:] if timed else [size for size in shape if size != 1], self._channels)
        if count > 1:
            self.parts[name] = tuple(f"{name}.{part}" for part in range(count))
            self.kinds |= dict.fromkeys(self.parts[name], Kind.ELEMENT if timed else Kind.CHANNEL)
            self._recorder.wide.operands(name, self.parts[name], tensor, timed=timed)
            return tensor
        self.parts[name] = () if kind is None else (name,)
        if kind is not None:
            self.kinds[name] = kind
        self._recorder.operand(name, tensor)
        return tensor


def differentiable(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those that can have a gradient."""
    return {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}


def placed(drive: Any, standing: list[Tensor | None]) -> Any:
    """The drive with other tensors; leaves that are None stay so."""
    if isinstance(drive, Tensor):
        return standing[0]
    return drive._make(standing) if hasattr(drive, "_make") else tuple(standing)
