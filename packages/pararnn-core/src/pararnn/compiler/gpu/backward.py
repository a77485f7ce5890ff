"""Gradients of a solve on a GPU: launches of the backward kernels.

Nothing waits for the device, and sums are made in a fixed order, so gradients are the same to the bit from run to run. Oracle:
`pararnn.compiler.reference`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pararnn.compiler.gpu import backward_direct as direct
from pararnn.compiler.gpu.backward_planning import Cut, cut_for
from pararnn.compiler.gpu.backward_prepared import Limit, Prepared, prepare
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
    direct.forget()


@dataclass(frozen=True)
class Arranged:
    """Tensors as the kernels of `work` take them; `results` has the gradients of rows and of the initial state, which are to be filled."""

    work: Prepared
    grad: Tensor
    states: Tensor
    operands: Sequence[Tensor]
    initial: Tensor
    results: list[Tensor | None]


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
    if not any(needs):
        return [None for _ in needs]
    key: direct.Key | None = None
    if cut is None:
        key, addresses = direct.key_of(program, plan, tuple(needs), (grad, states, initial, *operands), into, packed=offsets is not None)
        known = direct.find(key)
        found = None if known is None else known.run(addresses, states.device, operands, offsets, into)
        if found is not None:
            return found
    if states.numel() == 0:
        return [torch.zeros_like(one) if needed else None for one, needed in zip((*operands, initial), needs, strict=True)]
    arranged = arrange(program, grad, states, operands, initial, packed=offsets is not None, plan=plan, needs=needs, into=into, cut=cut)
    results = arranged.results
    totals = run(arranged, offsets)
    is_direct = arranged.grad is grad and arranged.states is states and arranged.initial is initial
    if key is not None and is_direct and all(one is operand for one, operand in zip(arranged.operands, operands, strict=True)):
        direct.note(key, arranged.work, plan, results, into)
    direct.spread(arranged.work, totals, operands, results)
    if into is not None:
        for index, target in enumerate(into):
            result = results[index]
            if target is not None and result is not None and result is not target:
                results[index] = target.copy_(result)
    return results


def arrange(
    program: Program,
    grad: Tensor,
    states: Tensor,
    operands: Sequence[Tensor],
    initial: Tensor,
    *,
    packed: bool,
    plan: Plan,
    needs: Sequence[bool],
    into: Sequence[Tensor | None] | None = None,
    cut: Cut | None = None,
    limit: Limit | None = None,
) -> Arranged:
    """What `run` takes; see `launch`. `limit` names an operand whose gradient is led back into its bounds."""
    needs = tuple(needs)
    results: list[Tensor | None] = [None] * len(needs)
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
    longest = plan.length if packed else states.shape[1]
    key = (id(program), needs, cut, limit, states.shape, initial.shape[0], longest, packed, into is None, states.device, layout)
    work = _prepared.get(key)
    if work is None:
        if cut is None:
            sizes: dict[str, Any] = {"itemsize": max(4, states.element_size()), "processors": _processors(states.device)}
            cut = cut_for(initial.shape[0], longest, states.shape[2], **sizes, crowded=is_crowded(program))
        work = prepare(program, cut, needs, grad, states, read, initial, results, packed=packed, aliased=into is not None, limit=limit)
        if len(_prepared) >= REMEMBERED:
            _prepared.clear()
        _prepared[key] = work
    return Arranged(work, grad, states, read, initial, results)


def run(arranged: Arranged, offsets: Tensor | None) -> list[Tensor]:
    """Launch; the sums over time and rows `(operands, size)`, one for each of `work.sums`."""
    states, results, work = arranged.states, arranged.results, arranged.work
    start = states if results[-1] is None else results[-1]
    memory: list[Any] = [states, arranged.initial, arranged.grad, *arranged.operands, *(results[index] for index in work.subject.rows), start]
    if not work.is_ready:
        return work.run(states.device, memory, offsets)
    # Launched before: an address is all that a compiled kernel needs.
    return work.run(states.device, [one.data_ptr() for one in memory], None if offsets is None else offsets.data_ptr())


def _dense(tensor: Tensor) -> Tensor:
    """`tensor` with its channels next to each other."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def _processors(device: torch.device) -> int:
    if device.type == "cpu" or os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        return PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count
