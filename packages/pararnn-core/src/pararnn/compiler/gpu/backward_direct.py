"""Backward passes of tensors that lie as others did: kernels, results and addresses are known, nothing has to be arranged.

A pass is noted when its kernels took every tensor as it was given. What lies in other strides, or at addresses that are aligned otherwise, has
another key and is arranged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pararnn.compiler.gpu.backward_prepared import Prepared
from pararnn.compiler.program import Kind, Program
from pararnn.solver.planner import Plan

REMEMBERED = 512

Key: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Direct:
    """A backward pass that was arranged.

    Attributes:
        work: the kernels.
        plan: told by its address in the key, so it is kept.
        made: the gradients that need memory of their own, by place, shape, strides and dtype.
    """

    work: Prepared
    plan: Plan
    made: tuple[tuple[int, torch.Size, tuple[int, ...], torch.dtype], ...]

    def run(
        self, addresses: Sequence[int], device: torch.device, operands: Sequence[Tensor], offsets: Tensor | None, into: Sequence[Tensor | None] | None
    ) -> list[Tensor | None] | None:
        """The gradients of what lies at `addresses`, as `key_of` gives them; None where their memory is not aligned as it was."""
        work, count = self.work, len(operands)
        results: list[Tensor | None] = [None] * (count + 1) if into is None else [*into, None]
        for index, shape, strides, dtype in self.made:
            one = results[index] = torch.empty_strided(shape, strides, dtype=dtype, device=device)
            if one.data_ptr() & 15:
                return None
        written = [0 if (row := results[index]) is None else row.data_ptr() for index in work.subject.rows]
        start = addresses[1] if (last := results[-1]) is None else last.data_ptr()
        grad, states, initial = addresses[:3]
        memory = (states, initial, grad, *addresses[3 : 3 + count], *written, start)
        totals = work.run(device, memory, None if offsets is None else offsets.data_ptr())
        spread(work, totals, operands, results)
        return results


_known: dict[Key, Direct] = {}


def forget() -> None:
    """Arrange everything anew."""
    _known.clear()


def key_of(
    program: Program,
    plan: Plan,
    needs: tuple[bool, ...],
    tensors: Sequence[Tensor],
    into: Sequence[Tensor | None] | None,
    *,
    packed: bool,
) -> tuple[Key, list[int]]:
    """What a pass is known by, and the addresses of `tensors`: gradient, states, initial state and operands."""
    given: Sequence[Tensor | None] = () if into is None else into
    addresses = [one.data_ptr() for one in tensors]
    layout = [(one.shape, one.dtype, one.stride(), address & 15) for one, address in zip(tensors, addresses, strict=True)]
    places = [None if one is None else (one.dtype, one.stride(), one.data_ptr() & 15) for one in given]
    return (id(program), id(plan), needs, packed, tensors[0].get_device(), into is None, *places, *layout), addresses


def find(key: Key) -> Direct | None:
    """The pass that is known by `key`."""
    return _known.get(key)


def note(key: Key, work: Prepared, plan: Plan, results: Sequence[Tensor | None], into: Sequence[Tensor | None] | None) -> None:
    """Know a pass that was arranged without a copy, once its kernels are compiled; `results` as they were before the sums were put there."""
    if not work.is_ready:
        return
    given: Sequence[Tensor | None] = [None] * len(results) if into is None else [*into, None]
    made = []
    for index, (result, target) in enumerate(zip(results, given, strict=True)):
        if target is not None and result is not target:
            return
        if result is not None and target is None:
            if result.data_ptr() & 15:
                return
            made.append((index, result.shape, result.stride(), result.dtype))
    if len(_known) >= REMEMBERED:
        _known.clear()
    _known[key] = Direct(work, plan, tuple(made))


def spread(work: Prepared, totals: Sequence[Tensor], operands: Sequence[Tensor], results: list[Tensor | None]) -> None:
    """Put the sums in their places among `results`, in the shapes and dtypes of the operands."""
    kinds = work.program.kinds
    for one, total in zip(work.sums, totals, strict=True):
        for row, index in enumerate(one.operands):
            operand, found = operands[index], total.select(0, row)
            if kinds[index] is Kind.SCALAR:
                found = found.sum()
            if found.shape != operand.shape:
                found = found.view(operand.shape)
            results[index] = found if found.dtype is operand.dtype else found.to(operand.dtype)
