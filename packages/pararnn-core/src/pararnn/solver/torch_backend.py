"""The backend of `solve` in plain PyTorch: plan, solve, attach gradients, report."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pararnn.scans.op import differentiable_scan
from pararnn.selection import Request
from pararnn.solver.adjoint import attach, before_each_step
from pararnn.solver.config import NewtonConfig
from pararnn.solver.planner import Plan, plan
from pararnn.solver.problem import Problem
from pararnn.solver.result import SolveResult, Status
from pararnn.solver.sequential import walk
from pararnn.solver.shooting import Record, trajectory
from pararnn.solver.truth import check_structure, is_finite
from pararnn.structures.diagonal import Diagonal

NAME = "torch"


def reasons(request: Request) -> tuple[str, ...]:
    """Obstacles: none, this is the backend that always works."""
    return ()


def probe() -> None:
    """Solve a small recurrence with intervals of four steps."""
    problem = Problem(
        step=lambda state, drive: torch.tanh(state + drive), structure=Diagonal, drive=torch.ones(1, 32, 2), initial=torch.zeros(1, 1, 2)
    )
    solve(problem, NewtonConfig(interval=4))


def solve(problem: Problem, config: NewtonConfig) -> SolveResult:
    """Solve `problem` as `config` asks; see `pararnn.solve`."""
    check_structure(problem)
    if problem.linear:
        return _scan_once(problem, config)
    planned = plan(problem, config)
    differentiable = torch.is_grad_enabled()
    if planned.walks and (planned.by_autograd or not differentiable):
        states = walk(problem)
        return _result(problem, planned, states, Record(walked=planned.length), _all(problem))
    states, solved, record = trajectory(problem, planned, config)
    if differentiable:
        # Rebound at once, so that the states themselves are free while the step is evaluated: they come back out of it.
        states = before_each_step(problem, states)
        states = attach(problem, states, scan_backend=config.scan_backend, derivatives=config.derivatives)
    return _result(problem, planned, states, record, solved)


def _scan_once(problem: Problem, config: NewtonConfig) -> SolveResult:
    """An affine step is its value at zero plus its Jacobian: one scan, differentiable to any order."""
    zero = problem.initial.new_zeros(problem.rows, problem.length, problem.state_size)
    term, transition = problem.linearize(zero, problem.drive)
    offsets = None if problem.offsets is None else torch.tensor(problem.offsets, device=zero.device)
    states = differentiable_scan(transition, term, problem.initial, offsets, reverse=False, backend=config.scan_backend)
    reason = "the cell is linear, so one scan solves it"
    lanes = problem.rows * problem.state_size
    linear = Plan(interval=1, length=problem.length, lanes=lanes, walk=0.0, sweep=0.0, parallel=0.0, patience=1, by_autograd=False, reason=reason)
    return replace(_result(problem, linear, states, Record(), _all(problem)), iterations=1)


def walked(problem: Problem) -> SolveResult:
    """The walk of `problem`, differentiated by autograd through every step."""
    lanes = problem.rows * problem.state_size
    asked = Plan(
        interval=problem.length,
        length=problem.length,
        lanes=lanes,
        walk=0.0,
        sweep=0.0,
        parallel=0.0,
        patience=0,
        by_autograd=True,
        reason="it was asked for",
    )
    return _result(problem, asked, walk(problem), Record(walked=problem.length), _all(problem))


def _all(problem: Problem) -> Tensor:
    return torch.ones_like(problem.initial[..., 0], dtype=torch.bool)


def _result(problem: Problem, planned: Plan, states: Tensor, record: Record, solved: Tensor) -> SolveResult:
    status = Status.REPAIRED if record.repaired else Status.WALKED if record.walked else Status.CONVERGED
    if not is_finite(problem, states):
        status = Status.NOT_FINITE
    return SolveResult(
        states=states,
        final=problem.last(states),
        status=status,
        converged=solved.flatten(),
        iterations=len(record.updates),
        updates=tuple(record.updates),
        attempts=tuple(record.attempts),
        walked=record.walked,
        plan=planned,
        backend=NAME,
    )
