"""Gradients of a solve on a GPU: launches of the backward kernels.

Nothing waits for the device, and sums are made in a fixed order, so gradients are the same to the bit from run to run. Oracle:
`pararnn.compiler.reference`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pararnn.compiler.gpu.backward_planning import Cut, cut_for
from pararnn.compiler.gpu.backward_prepared import Prepared, prepare
from pararnn.compiler.gpu.parts import is_crowded
from pararnn.compiler.program import Kind, Program
from pararnn.solver.planner import Plan

# Where the interpreter stands in for a GPU.
PROCESSORS = 132
REMEMBERED = 512

_prepared: dict[tuple[Any, ...], Prepared] = {}


def forget() -> None:
    """Prepare everything anew."""
    _prepared.clear()


def launch(
    program: Program,
    grad: Tensor,
    states: Tensor,
    operands: Sequence[Tensor],
    initial: Tensor,
    *,
    offsets: Tensor | None,
    plan: Plan,
    needs: Sequence[bool],
    into: Sequence[Tensor | None] | None = None,
    cut: Cut | None = None,
) -> list[Tensor | None]:
    """The gradients of the operands and, last, of `initial`: see `pararnn.compiler.engine.Engine.backward`. `cut` overrides the choice of kernels."""
    needs = tuple(needs)
    results: list[Tensor | None] = [None] * len(needs)
    if not any(needs):
        return results
    if states.numel() == 0:
        return [torch.zeros_like(one) if needed else None for one, needed in zip((*operands, initial), needs, strict=True)]
    kinds = program.kinds
    grad = grad if grad.stride(2) in (0, 1) else grad.contiguous()
    states, initial = _dense(states), _dense(initial)
    read = [
        _dense(one) if kind is Kind.ELEMENT else one if kind is Kind.STEP or one.is_contiguous() else one.contiguous()
        for kind, one in zip(kinds, operands, strict=True)
    ]
    if needs[-1]:
        results[-1] = torch.empty(initial.shape, dtype=initial.dtype, device=initial.device)
    for index, kind in enumerate(kinds):
        if needs[index] and kind is Kind.ELEMENT:
            target = None if into is None else into[index]
            usable = target is not None and (target.stride(2) == 1 or target.shape[2] == 1)
            results[index] = target if usable else torch.empty(states.shape, dtype=operands[index].dtype, device=states.device)
    layout = tuple(None if one is None else (one.dtype, one.stride(), one.data_ptr() & 15) for one in (grad, states, initial, *read, *results))
    longest = states.shape[1] if offsets is None else plan.length
    key = (id(program), needs, cut, states.shape, initial.shape[0], longest, offsets is None, into is None, states.device, layout)
    work = _prepared.get(key)
    if work is None:
        if cut is None:
            sizes: dict[str, Any] = {"itemsize": max(4, states.element_size()), "processors": _processors(states.device)}
            cut = cut_for(initial.shape[0], longest, states.shape[2], **sizes, crowded=is_crowded(program))
        work = prepare(program, cut, needs, grad, states, read, initial, results, packed=offsets is not None, aliased=into is not None)
        if len(_prepared) >= REMEMBERED:
            _prepared.clear()
        _prepared[key] = work
    if states.is_cuda and states.device.index != torch.cuda.current_device():
        with torch.cuda.device_of(states):
            _run(work, grad, states, read, initial, offsets, results)
    else:
        _run(work, grad, states, read, initial, offsets, results)
    if into is not None:
        for index, target in enumerate(into):
            result = results[index]
            if target is not None and result is not None and result is not target:
                results[index] = target.copy_(result)
    return results


def _run(
    work: Prepared, grad: Tensor, states: Tensor, operands: list[Tensor], initial: Tensor, offsets: Tensor | None, results: list[Tensor | None]
) -> None:
    """Launch, and fill what is missing of `results`."""
    subject = work.subject
    between = torch.empty(work.work, dtype=work.carry, device=states.device) if work.work else states
    totals = [torch.empty((len(one.operands), one.size), dtype=one.dtype, device=states.device) for one in work.sums]
    start, bounds = (stand_in if one is None else one for one, stand_in in ((results[-1], states), (offsets, states)))
    memory: Sequence[Any] = (
        *(states, initial, grad, *operands),
        *(results[index] for index in subject.rows),
        *(start, totals[0] if work.direct and subject.sums else between, bounds, between),
    )
    work_memory: Sequence[Any] = (between,)
    if work.main.launch is not None:
        # Launched before: an address is all that a compiled kernel needs.
        memory, work_memory = [one.data_ptr() for one in memory], (between.data_ptr(),)
    for kernel, bounding in work.before:
        kernel(work_memory if bounding else memory)
    work.main(memory)
    for slot, (one, total) in enumerate(zip(work.sums, totals, strict=True)):
        if not (work.direct and slot == 0 and subject.sums):
            one.kernel((between, total) if one.kernel.launch is None else (between.data_ptr(), total.data_ptr()))
        for row, index in enumerate(one.operands):
            operand, found = operands[index], total[row]
            if work.program.kinds[index] is Kind.SCALAR:
                found = found.sum()
            found = found.view(operand.shape)
            results[index] = found if found.dtype == operand.dtype else found.to(operand.dtype)


def _dense(tensor: Tensor) -> Tensor:
    """`tensor` with its channels next to each other."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def _processors(device: torch.device) -> int:
    if device.type == "cpu" or os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        return PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count
