"""The recurrence of `ParaCfC` with `gate_mix="input"` from its projections on, as a program for engines.

Operands: rate and candidate before their biases, the gap as it was measured, the recurrent weights before their limit, the two biases. So nothing is
computed outside of the kernels but one matrix product, and the gradients of biases are summed where they arise.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pararnn.compiler.program import Expression, Operation, Program, Value
from pararnn.compiler.tracing import trace
from pararnn_cfc.time_gaps import SHORTEST

# The operand that is limited.
RECURRENT = "o3"


class Projections(NamedTuple):
    """What a step reads: `(*lead, state)` but for the gap `(*lead, 1)` and the weights `(state,)`; biases may be missing."""

    rate: Tensor
    candidate: Tensor
    elapsed: Tensor
    recurrent: Tensor
    rate_bias: Tensor | None = None
    candidate_bias: Tensor | None = None


def step(state: Tensor, drive: Projections) -> Tensor:
    """The next state `(*lead, state)`."""
    return _move(state, drive, drive.elapsed.clamp(SHORTEST, torch.finfo(drive.elapsed.dtype).max))


def guarded_step(state: Tensor, drive: Projections) -> Tensor:
    """The next state; NaN after a gap that is NaN or negative, for devices that nobody waits for, so that nobody can be told."""
    gap = drive.elapsed.clamp(SHORTEST, torch.finfo(drive.elapsed.dtype).max)
    return _move(state, drive, torch.where(drive.elapsed >= 0, gap, torch.nan))


def _move(state: Tensor, drive: Projections, gap: Tensor) -> Tensor:
    rate, candidate = drive.rate, drive.candidate
    if drive.rate_bias is not None and drive.candidate_bias is not None:
        rate, candidate = rate + drive.rate_bias, candidate + drive.candidate_bias
    candidate = torch.tanh(candidate + drive.recurrent * state)
    # In this form a state that is kept is kept to the bit.
    return state + (1 - torch.exp(-functional.softplus(rate) * gap)) * (candidate - state)


@functools.lru_cache(maxsize=64)
def program(dtype: torch.dtype, bound: float | None, *, guarded: bool, biased: bool) -> Program:
    """The program for states of `dtype` with recurrent weights limited to `bound`; its gradient by them is that by the limited ones."""
    row, channel = (torch.full(shape, 0.5, dtype=dtype, device="cpu") for shape in ((1, 2), (2,)))
    biases = (channel.clone(), channel.clone()) if biased else ()
    traced = trace(guarded_step if guarded else step, row, Projections(row.clone(), row.clone(), row[:, :1].clone(), channel, *biases), {})
    return traced.program if bound is None else _limited(traced.program, bound)


@functools.cache
def rounded(bound: float, dtype: torch.dtype) -> float:
    """`bound` as a clip in `dtype` has it."""
    return float(torch.tensor(bound, dtype=dtype, device="cpu"))


def _limited(free: Program, bound: float) -> Program:
    return replace(free, value=_limit(free.value, bound), advance=_limit(free.advance, bound), pull=_limit(free.pull, bound))


def _limit(expression: Expression, bound: float) -> Expression:
    """`expression` with the recurrent weights limited before they are used, and its outputs as they follow from the limited ones."""

    def limited(value: Value) -> Value:
        return "limited" if value == RECURRENT else value

    first = (Operation("above", "maximum", (RECURRENT, -bound)), Operation("limited", "minimum", ("above", bound)))
    rest = (replace(one, arguments=tuple(map(limited, one.arguments))) for one in expression)
    return replace(expression, operations=(*first, *rest), outputs=tuple(map(limited, expression.outputs)))
