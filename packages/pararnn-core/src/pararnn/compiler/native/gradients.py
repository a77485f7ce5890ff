"""Where a backward pass writes gradients, and the sums that are left to be made of what it wrote."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from pararnn.compiler.native.calls import NOWHERE, in_dtype
from pararnn.compiler.native.layout import Layout
from pararnn.compiler.native.memory import room
from pararnn.compiler.program import Kind, Program


class Gradients:
    """Memory for the gradients of the operands of one call.

    That of an element is written as it is. That of a step comes as a sum for each block of channels, those of channels and scalars as sums in double
    precision for each task, all added in a fixed order.
    """

    def __init__(
        self,
        program: Program,
        values: Sequence[Tensor],
        shape: Sequence[int],
        sequences: int,
        layout: Layout,
        needs: Sequence[bool],
        into: Sequence[Tensor | None] | None,
    ) -> None:
        rows, length, state = shape
        self.kinds = program.kinds
        self.blocks = -(-state // layout.block)
        parts = -(-sequences // layout.together)
        self.memory: list[Tensor | None] = []
        for index, (kind, value, need) in enumerate(zip(program.kinds, values, needs, strict=True)):
            given = into[index] if into is not None else None
            if not need:
                self.memory.append(None)
            elif kind is Kind.ELEMENT:
                self.memory.append(given if given is not None and given.dtype is value.dtype else room((rows, length, state), value.dtype))
            elif kind is Kind.STEP:
                self.memory.append(torch.empty(self.blocks, rows, length, 1, dtype=value.dtype, device="cpu"))
            else:
                self.memory.append(torch.empty(parts, state, dtype=torch.float64, device="cpu"))
        self.into = into

    def places(self) -> Iterator[tuple[int, ...]]:
        """The places, as C has them."""
        for kind, memory in zip(self.kinds, self.memory, strict=True):
            if memory is None:
                yield NOWHERE
            elif kind is Kind.STEP:
                block, row, time, _ = memory.stride()
                yield memory.data_ptr(), row, time, block
            elif kind is Kind.ELEMENT:
                yield memory.data_ptr(), *memory.stride()
            else:
                yield memory.data_ptr(), 0, 0, 0

    def collect(self, operands: Sequence[Tensor], add_rows: Callable[..., None]) -> list[Tensor | None]:
        """The gradients, in shape and dtype of the operands or in the memory that was given for them."""
        found: list[Tensor | None] = []
        for index, (kind, memory, operand) in enumerate(zip(self.kinds, self.memory, operands, strict=True)):
            if memory is None:
                found.append(None)
            elif kind is Kind.ELEMENT:
                given = self.into[index] if self.into is not None else None
                found.append(in_dtype(memory, operand.dtype) if given is None else given if given is memory else given.copy_(memory))
            elif kind is Kind.STEP:
                found.append(in_dtype(memory[0] if self.blocks == 1 else functools.reduce(torch.add, memory.unbind()), operand.dtype))
            else:
                rows, size = memory.shape if kind is Kind.CHANNEL else (memory.numel(), 1)
                sums = torch.empty(size, dtype=torch.float64, device="cpu")
                add_rows(rows, size, memory.data_ptr(), sums.data_ptr())
                found.append(sums.to(operand.dtype).view(operand.shape))
        return found
