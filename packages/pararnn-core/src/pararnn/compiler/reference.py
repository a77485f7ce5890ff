"""Programs run by PyTorch, one step after the other: the oracle of every engine."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from pararnn.compiler.primitives import PRIMITIVES
from pararnn.compiler.program import Expression, Kind, Program, Value


@torch.no_grad()
def evaluate(expression: Expression, *inputs: Tensor) -> tuple[Tensor, ...]:
    """The outputs of `expression` on tensors whose shapes broadcast to that of the first, all of that shape."""
    values: dict[Value, Tensor] = dict(zip(expression.inputs, inputs, strict=True))

    def tensor(value: Value) -> Tensor:
        return values[value] if isinstance(value, str) else torch.tensor(value, dtype=inputs[0].dtype, device=inputs[0].device)

    for operation in expression:
        values[operation.result] = PRIMITIVES[operation.primitive].meaning(*map(tensor, operation.arguments))
    return tuple(tensor(output).expand_as(inputs[0]) for output in expression.outputs)


@torch.no_grad()
def walk(program: Program, operands: Sequence[Tensor], initial: Tensor, offsets: Tensor | None = None) -> Tensor:
    """The states `(rows, time, state)`, shapes as an engine takes them; computed in the dtype of the carry, given in that of `initial`."""
    states = initial.new_empty(_rows(initial, offsets), _length(program, operands), initial.shape[-1])
    for rows, sequence, start, end in _sequences(states, offsets):
        state = _carried(initial[sequence])
        for time in range(start, end):
            (state,) = evaluate(program.value, state, *_at(program, operands, rows, time, state.dtype))
            states[rows, time] = state
    return states


@torch.no_grad()
def backward(
    program: Program, grad: Tensor, states: Tensor, operands: Sequence[Tensor], initial: Tensor, offsets: Tensor | None = None
) -> list[Tensor]:
    """The gradients of the operands and, last, of `initial`, in their shapes and dtypes, from `grad` `(rows, time, state)`."""
    gradients = [torch.zeros(operand.shape, dtype=_carry(initial.dtype), device=operand.device) for operand in (*operands, initial)]
    for rows, sequence, start, end in _sequences(states, offsets):
        costate = _carried(torch.zeros_like(initial[sequence]))
        for time in reversed(range(start, end)):
            before = _carried(states[rows, time - 1] if time > start else initial[sequence])
            costate = costate + grad[rows, time]
            costate, *pulled = evaluate(program.pull, costate, before, *_at(program, operands, rows, time, costate.dtype))
            for kind, gradient, contribution in zip(program.kinds, gradients[:-1], pulled, strict=True):
                _add(kind, gradient, contribution, rows, time)
        gradients[-1][sequence] = costate
    return [gradient.to(operand.dtype) for gradient, operand in zip(gradients, (*operands, initial), strict=True)]


def _sequences(states: Tensor, offsets: Tensor | None) -> list[tuple[slice, slice, int, int]]:
    """Rows, sequences, first step and end of what is walked at once: all rows, or one packed sequence after the other."""
    if offsets is None:
        return [(slice(None), slice(None), 0, states.shape[1])]
    bounds = itertools.pairwise(offsets.tolist())
    return [(slice(0, 1), slice(index, index + 1), start, end) for index, (start, end) in enumerate(bounds)]


def _at(program: Program, operands: Sequence[Tensor], rows: slice, time: int, dtype: torch.dtype) -> list[Tensor]:
    """The operands of a step, each `(rows, state)` or with fewer numbers that broadcast."""
    pairs = zip(program.kinds, operands, strict=True)
    return [(operand[rows, time] if kind.is_timed else operand.reshape(-1)).to(dtype) for kind, operand in pairs]


def _add(kind: Kind, gradient: Tensor, contribution: Tensor, rows: slice, time: int) -> None:
    if kind is Kind.ELEMENT:
        gradient[rows, time] = contribution
    elif kind is Kind.STEP:
        gradient[rows, time] = contribution.sum(-1, keepdim=True)
    elif kind is Kind.CHANNEL:
        gradient.view(-1).add_(contribution.sum(0))
    else:
        gradient.add_(contribution.sum())


def _rows(initial: Tensor, offsets: Tensor | None) -> int:
    return initial.shape[0] if offsets is None else 1


def _length(program: Program, operands: Sequence[Tensor]) -> int:
    return next(operand.shape[1] for kind, operand in zip(program.kinds, operands, strict=True) if kind.is_timed)


def _carry(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _carried(tensor: Tensor) -> Tensor:
    return tensor.to(_carry(tensor.dtype))
