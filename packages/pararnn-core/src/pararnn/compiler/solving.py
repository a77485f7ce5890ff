"""A solve by an engine: plan, kernels, gradients, record.

The states come out of one autograd node, whose backward is the engine's. It saves the operands as autograd does, so that a weight that is edited
between forward and backward is noticed, and it can be differentiated once: kernels for second derivatives do not exist.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pararnn.compiler.catalogue import Compiled
from pararnn.compiler.columns import apart, backward
from pararnn.compiler.engine import Engine, Tolerance, Workload
from pararnn.compiler.program import Program
from pararnn.compiler.record import Record
from pararnn.scans.segments import Offsets, on_device
from pararnn.solver.adjoint import limit_derivatives
from pararnn.solver.config import NewtonConfig
from pararnn.solver.planner import Plan
from pararnn.solver.problem import Problem
from pararnn.solver.result import SolveResult
from pararnn.solver.sequential import walk
from pararnn.solver.truth import is_finite

ADVICE = "NewtonConfig(backend='torch', derivatives='twice') gives second derivatives, solver='sequential' any order"
# Sweeps before the walk, where a plan says nothing less.
LIMIT = 64
REMEMBERED = 1024


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """What an engine is to do, all of it decided before a number is looked at."""

    engine: Engine
    program: Program
    plan: Plan
    tolerance: Tolerance


# Tasks by engine, program, sizes and options. The first two are told by their addresses, so a task keeps them alive.
_tasks: dict[tuple[Any, ...], Task] = {}


def solve_compiled(engine: Engine, compiled: Compiled, problem: Problem, config: NewtonConfig) -> SolveResult:
    """Solve `problem`, whose step is `compiled`, by `engine`; on a GPU nothing waits for the device.

    Raises:
        InputError: on a CPU, the drive or the initial state holds NaN or infinity, and the states do for that reason.
    """
    tensors = compiled.tensors(problem)
    offsets = problem.offsets
    initial = _starts(problem)
    task = task_of(engine, compiled.program, problem.rows, problem.length, initial, offsets, config)
    bounds = None if offsets is None else on_device(offsets, initial.device)
    states, record = solve_task(task, tensors, initial, bounds)
    # One pass that stores nothing tells most of the time; a sum can overflow where its terms do not.
    if looks_at_once(states) and not math.isfinite(states.detach().sum().item()):
        is_finite(problem, states)
    return SolveResult.deferred(Record(task.plan, states, initial, record, bounds), states=states, plan=task.plan, backend=engine.name)


def looks_at_once(tensor: Tensor) -> bool:
    """Whether numbers of `tensor` can be looked at without waiting for a device."""
    return tensor.device.type == "cpu"


def task_of(engine: Engine, program: Program, rows: int, length: int, initial: Tensor, offsets: Offsets | None, config: NewtonConfig) -> Task:
    """The task for these sizes, remembered."""
    longest = length
    if offsets is not None:
        longest = max((end - start for start, end in itertools.pairwise(offsets)), default=0)
    sequences, state = initial.shape
    asked = config.interval, config.max_iters, config.atol, config.rtol
    key = (id(engine), id(program), rows, length, sequences, state, longest, initial.dtype, asked)
    task = _tasks.get(key)
    if task is None:
        work = Workload(rows=rows, length=length, state=state, sequences=sequences, longest=longest, itemsize=initial.element_size())
        plan = engine.plan(program, work, config.interval)
        absolute, relative = config.tolerances(initial.dtype)
        sweeps = config.max_iters or max(1, min(plan.patience, LIMIT))
        task = Task(engine=engine, program=program, plan=plan, tolerance=Tolerance(absolute=absolute, relative=relative, sweeps=sweeps))
        if len(_tasks) >= REMEMBERED:
            _tasks.clear()
        _tasks[key] = task
    return task


def solve_task(task: Task, tensors: list[Tensor], initial: Tensor, offsets: Tensor | None) -> tuple[Tensor, Tensor]:
    """States `(rows, time, state)`, differentiable once, and the record of the engine; `tensors` hold the operands."""
    if torch.is_grad_enabled() and (initial.requires_grad or any(tensor.requires_grad for tensor in tensors)):
        records: list[Tensor] = []
        states: Tensor = _Solve.apply(task, records, offsets, initial, *tensors)
        return states, records[0]
    operands = apart(task.program.parts, tensors) if task.program.parts else tensors
    return task.engine.solve(task.program, operands, initial, offsets=offsets, plan=task.plan, tolerance=task.tolerance)


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, task: Task, records: list[Tensor], offsets: Tensor | None, initial: Tensor, *tensors: Tensor) -> Tensor:
        # Tensors as they are given are the sources, so that each has one gradient.
        operands = apart(task.program.parts, tensors) if task.program.parts else tensors
        states, record = task.engine.solve(task.program, operands, initial, offsets=offsets, plan=task.plan, tolerance=task.tolerance)
        records.append(record)
        ctx.task = task
        ctx.save_for_backward(states, offsets, initial, *tensors)
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        states, offsets, initial, *tensors = ctx.saved_tensors
        task, needs = ctx.task, (*ctx.needs_input_grad[4:], ctx.needs_input_grad[3])
        with torch.no_grad():
            if task.program.parts:
                found = backward(task.engine, task.program, grad, states, tensors, initial, offsets=offsets, plan=task.plan, needs=needs)
            else:
                found = task.engine.backward(task.program, grad, states, tensors, initial, offsets=offsets, plan=task.plan, needs=needs)
        *found, start = found
        if torch.is_grad_enabled():
            # Whatever is differentiated again depends on one of these, so a refusing node lies on the way of every such request.
            sources = grad, initial, *tensors
            start, *found = (_once(derivative, sources) for derivative in (start, *found))
        return None, None, None, start, *found


def _once(derivative: Tensor | None, sources: tuple[Tensor, ...]) -> Tensor | None:
    return None if derivative is None else limit_derivatives(derivative, *sources, order=0, derived=True, advice=ADVICE)


def solve_nothing(engine: Engine, problem: Problem) -> SolveResult:
    """The result of no step or no sequence: nothing is launched."""
    facts: dict[str, Any] = {"walk": 0.0, "sweep": 0.0, "parallel": 0.0, "patience": 0, "by_autograd": True}
    lanes = problem.rows * problem.state_size
    plan = Plan(interval=problem.length, length=problem.length, lanes=lanes, reason="there is nothing to solve", **facts)
    states, initial = walk(problem), _starts(problem)
    source = Record(plan, states, initial, initial.new_zeros(initial.shape[0], 1, 3, dtype=torch.float32), problem.offsets)
    return SolveResult.deferred(source, states=states, plan=plan, backend=engine.name)


def _starts(problem: Problem) -> Tensor:
    """The states before the first step, `(sequences, state)`."""
    return problem.initial.squeeze(1 if problem.offsets is None else 0)
