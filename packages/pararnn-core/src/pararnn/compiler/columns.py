"""Tensors as engines take them. Those that hold several operands side by side are taken apart, read where they lie, and have one gradient.

`parts` of a program says how many operands each tensor holds; all of it is for programs where that is not one everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pararnn.compiler.engine import Engine
from pararnn.compiler.program import Program
from pararnn.solver.planner import Plan


def apart(parts: Sequence[int], tensors: Sequence[Tensor]) -> list[Tensor]:
    """The operands in `tensors`: `(rows, time, parts * state)`, `(rows, time, parts, state)` or `(parts * state,)`, as views `(..., state)`."""
    found: list[Tensor] = []
    for count, tensor in zip(parts, tensors, strict=True):
        if count == 1:
            found.append(tensor)
        else:
            found += tensor.unbind(2) if tensor.ndim == 4 else tensor.chunk(count, -1)
    return found


def fitted(tensor: Tensor, carry: torch.dtype, *, flat: bool) -> Tensor:
    """`tensor` in a dtype that engines take, whose kernels compute in `carry`; of one dimension if it is to be `flat`."""
    if not tensor.is_floating_point() or tensor.dtype.itemsize > carry.itemsize:
        tensor = tensor.to(carry)
    elif carry is torch.float64 and tensor.dtype.itemsize < torch.float32.itemsize:
        # Not every machine rounds from double to half precision in one step.
        tensor = tensor.to(torch.float32)
    return tensor.reshape(-1) if flat and tensor.ndim != 1 else tensor


def backward(
    engine: Engine,
    program: Program,
    grad: Tensor,
    states: Tensor,
    tensors: Sequence[Tensor],
    initial: Tensor,
    *,
    offsets: Tensor | None,
    plan: Plan,
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """As `Engine.backward`, of tensors and `needs` by tensor: each has one gradient, which the engine writes to where it can."""
    parts = program.parts
    wholes = [
        torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) if count > 1 and needed and tensor.ndim > 2 else None
        for count, tensor, needed in zip(parts, tensors, needs, strict=False)
    ]
    into: list[Tensor | None] = []
    for count, whole in zip(parts, wholes, strict=True):
        into += [None] * count if whole is None else apart((count,), (whole,))
    wanted = [needed for count, needed in zip(parts, needs, strict=False) for _ in range(count)]
    *found, start = engine.backward(
        program,
        grad,
        states,
        apart(parts, tensors),
        initial,
        offsets=offsets,
        plan=plan,
        needs=(*wanted, needs[-1]),
        into=into if any(whole is not None for whole in wholes) else None,
    )
    gradients: list[Tensor | None] = []
    first = 0
    for count, whole in zip(parts, wholes, strict=True):
        mine, given = found[first : first + count], into[first : first + count]
        if whole is None:
            gradients.append(_joined([one for one in mine if one is not None]))
        else:
            for one, target in zip(mine, given, strict=True):
                if one is not target and one is not None and target is not None:
                    target.copy_(one)
            gradients.append(whole)
        first += count
    return [*gradients, start]


def _joined(parts: Sequence[Tensor]) -> Tensor | None:
    """The parts of a gradient `(state,)` as one, without a copy where they lie one behind the other already."""
    if len(parts) < 2:
        return parts[0] if parts else None
    head, size = parts[0], parts[0].numel()
    begins = [one.data_ptr() - index * size * head.element_size() for index, one in enumerate(parts)]
    shared = {one.untyped_storage().data_ptr() for one in parts}
    if len(shared) == 1 and set(begins) == {head.data_ptr()} and all(one.is_contiguous() for one in parts):
        return head.as_strided((len(parts) * size,), (1,))
    return torch.cat([*parts])
