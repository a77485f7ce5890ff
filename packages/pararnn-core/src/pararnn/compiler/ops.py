"""Solves by an engine as operators of PyTorch, for graphs that a compiler makes.

Programs and engines are named by text, which a graph can hold; `register` says what the texts mean, in every process anew, before a graph is made.
"""

from __future__ import annotations

import functools
import math
from collections import namedtuple
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pararnn.compiler.columns import apart, backward
from pararnn.compiler.engine import Engine, Tolerance, Workload
from pararnn.compiler.engines import engine_named
from pararnn.compiler.program import Program
from pararnn.compiler.solving import ADVICE, LIMIT, looks_at_once
from pararnn.errors import CompilationError, DifferentiationError
from pararnn.solver.planner import Plan
from pararnn.solver.problem import Problem
from pararnn.solver.truth import is_finite
from pararnn.structures.diagonal import Diagonal

_programs: dict[str, Program] = {}


def register(program: Program) -> str:
    """The text that names `program` in a graph."""
    key = program.key
    _programs[key] = program
    return key


def program_at(key: str) -> Program:
    """The program that `key` names.

    Raises:
        CompilationError: it was registered in another process.
    """
    if key not in _programs:
        raise CompilationError(
            f"a graph asks for the compiled step {key}, which this process has not made; solve once with the layer that the graph was made from, "
            "which makes it, before the graph runs"
        )
    return _programs[key]


@torch.library.custom_op("pararnn::solve_compiled", mutates_args=())
def solve_op(
    engine: str,
    program: str,
    tensors: Sequence[Tensor],
    initial: Tensor,
    offsets: Tensor | None,
    longest: int,
    interval: str,
    absolute: float,
    relative: float,
    sweeps: int,
    leaves: str,
) -> tuple[Tensor, Tensor]:
    """States `(rows, time, state)`, and the record of each sequence `(sequences, 3)`; `tensors` hold the operands, one or several side by side.

    `longest` is the number of steps of the longest packed sequence, 0 without packing; `interval` as in `NewtonConfig`, as text; `sweeps` limits the
    iterations, 0 for the limit of the plan. `leaves` are the names of the leaves of a drive, with commas between, which are the first of `tensors`.

    Raises:
        InputError: on a CPU, the drive or the initial state holds NaN or infinity, and the states do for that reason.
    """
    served, plan = _planned(engine, program, tensors, initial, longest, interval)
    parts = program_at(program).parts
    operands = apart(parts, tensors) if parts else tensors
    tolerance = Tolerance(absolute=absolute, relative=relative, sweeps=sweeps or max(1, min(plan.patience, LIMIT)))
    states, record = served.solve(program_at(program), operands, initial, offsets=offsets, plan=plan, tolerance=tolerance)
    if looks_at_once(states) and not math.isfinite(states.sum().item()):
        _look_at_inputs(states, tensors, initial, leaves)
    return states, record.amax(1)


def _look_at_inputs(states: Tensor, tensors: Sequence[Tensor], initial: Tensor, leaves: str) -> None:
    """Raise `InputError` where states are not finite because the inputs are not, as a solve outside of graphs does."""
    names = leaves.split(",")
    drive: Any = tensors[: len(names)]
    if all(names):
        drive = namedtuple("Drive", names, rename=True)(*drive)
    is_finite(Problem(step=lambda state, _: state, structure=Diagonal, drive=drive, initial=initial), states)


@solve_op.register_fake
def _(
    engine: str,
    program: str,
    tensors: Sequence[Tensor],
    initial: Tensor,
    offsets: Tensor | None,
    longest: int,
    interval: str,
    absolute: float,
    relative: float,
    sweeps: int,
    leaves: str,
) -> tuple[Tensor, Tensor]:
    rows, length = _rows_and_length(program, tensors)
    return initial.new_empty(rows, length, initial.shape[-1]), initial.new_empty(initial.shape[0], 3, dtype=torch.float32)


@torch.library.custom_op("pararnn::solve_compiled_backward", mutates_args=())
def solve_backward_op(
    engine: str,
    program: str,
    grad: Tensor,
    states: Tensor,
    tensors: Sequence[Tensor],
    initial: Tensor,
    offsets: Tensor | None,
    longest: int,
    interval: str,
    needs: Sequence[bool],
) -> list[Tensor]:
    """The gradients that are needed, of `tensors` and, last, of `initial`."""
    served, plan = _planned(engine, program, tensors, initial, longest, interval)
    if program_at(program).parts:
        found = backward(served, program_at(program), grad, states, tensors, initial, offsets=offsets, plan=plan, needs=needs)
    else:
        found = served.backward(program_at(program), grad, states, tensors, initial, offsets=offsets, plan=plan, needs=needs)
    # A graph was made for these shapes and dtypes.
    return [
        _alone(gradient.reshape(tensor.shape).to(tensor.dtype))
        for gradient, tensor in zip(found, (*tensors, initial), strict=True)
        if gradient is not None
    ]


def _alone(gradient: Tensor) -> Tensor:
    """`gradient` in memory of its own: engines give sums as rows of one tensor, and results of an operator must not share memory."""
    return gradient if gradient.untyped_storage().nbytes() == gradient.nbytes else gradient.clone()


@solve_backward_op.register_fake
def _(
    engine: str,
    program: str,
    grad: Tensor,
    states: Tensor,
    tensors: Sequence[Tensor],
    initial: Tensor,
    offsets: Tensor | None,
    longest: int,
    interval: str,
    needs: Sequence[bool],
) -> list[Tensor]:
    wanted = zip((*tensors, initial), needs, strict=True)
    return [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor, needed in wanted if needed]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.engine, ctx.program, tensors, initial, offsets, ctx.longest, ctx.interval = inputs[:7]
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[0], offsets, initial, *tensors)


def _backward(ctx: Any, grad: Tensor, _record: Any) -> tuple[Any, ...]:
    states, offsets, initial, *tensors = ctx.saved_tensors
    needs = [tensor.requires_grad for tensor in (*tensors, initial)]
    found = iter(solve_backward_op(ctx.engine, ctx.program, grad, states, tensors, initial, offsets, ctx.longest, ctx.interval, needs))
    *gradients, start = [next(found) if needed else None for needed in needs]
    return None, None, gradients, start, *(None for _ in range(7))


def _refuse(ctx: Any, *grads: Any) -> Any:
    raise DifferentiationError(f"kernels for second derivatives do not exist; {ADVICE}")


solve_op.register_autograd(_backward, setup_context=_save)
solve_backward_op.register_autograd(_refuse)


def _rows_and_length(program: str, tensors: Sequence[Tensor]) -> tuple[int, int]:
    timed = next(tensor for kind, tensor in zip(program_at(program).tensors, tensors, strict=True) if kind.is_timed)
    return timed.shape[0], timed.shape[1]


def _planned(engine: str, program: str, tensors: Sequence[Tensor], initial: Tensor, longest: int, interval: str) -> tuple[Engine, Plan]:
    served: Any = engine_named(engine)
    rows, length = _rows_and_length(program, tensors)
    sequences, state = initial.shape
    itemsize = initial.element_size()
    work = Workload(rows=rows, length=length, state=state, sequences=sequences, longest=longest or length, itemsize=itemsize)
    return served, _plan(served, program_at(program), work, interval)


@functools.lru_cache(maxsize=1024)
def _plan(engine: Any, program: Program, work: Workload, interval: str) -> Plan:
    # Remembered as one object, by which engines tell what they have prepared.
    plan: Plan = engine.plan(program, work, interval if interval in ("auto", "parallel") else int(interval))
    return plan
