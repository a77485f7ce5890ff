"""Multiple shooting: unknown states only at the ends of intervals, found by Newton's method with a scan over the intervals.

With entry states `s[c]`, interval `c` ends at `phi_c(s[c])` with derivative `P_c`, the product of the step Jacobians on the way. One
iteration walks all intervals at once, then solves `d[c+1] = P_c d[c] + (phi_c(s[c]) - s[c+1])`, `d[0] = 0`, by a scan, and corrects `s += d`.
Intervals of one step are ParaRNN's algorithm 1; one interval is the walk.

What holds for every cell:

- A sequence counts as solved when its own update is below the tolerance, never because its residual is: a long memory hides large errors behind
  small residuals. The update is measured on the very states that are returned, and counts as often as an error at the entry of an interval
  would grow inside it. Where rounding errors grow so much that two right answers differ visibly, the loop's own is given: the walk.
- After `k` iterations the first `k` intervals no longer change, so the iteration ends. A sequence whose update stops shrinking goes on with
  longer intervals, guided by what it has, and in the end with the walk. So the answer is the sequential one, for a chaotic cell too.
- What one sequence of a batch does depends on its own numbers alone, to the bit.

Sources: Danieli et al. (2025), arXiv 2510.21450, algorithm 1 and appendix A; Bock and Plitt (1984), the multiple shooting method.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pararnn.errors import ConvergenceError
from pararnn.solver.config import NewtonConfig
from pararnn.solver.iteration import Iteration
from pararnn.solver.lanes import any_true
from pararnn.solver.partition import Partition
from pararnn.solver.planner import Plan
from pararnn.solver.problem import Problem
from pararnn.solver.sequential import walk

# Intervals grow by this factor when a sequence stalls, as long as all sweeps, those to come included, are estimated at no more than this share
# of the walk. A sweep over longer intervals is taken to cost in proportion, and to be needed this many times.
GROWTH, AFFORDABLE, EXPECTED = 4, 0.75, 3


@dataclass
class Record:
    """What happened, gathered along the way; `attempts` are the steps of an interval and the sweeps made with them."""

    updates: list[float] = field(default_factory=list)
    attempts: list[tuple[int, int]] = field(default_factory=list)
    walked: int = 0
    repaired: bool = False


def trajectory(problem: Problem, plan: Plan, config: NewtonConfig) -> tuple[Tensor, Tensor, Record]:
    """States `(rows, time, state)`, which sequences `(rows, segments)` the first iteration itself solved, and the record.

    The states are cut from the autograd graph.

    Raises:
        ConvergenceError: a sequence stalled and `config.on_stall` is `"raise"`.
    """
    record = Record()
    with torch.no_grad():
        states, solved = _solve(problem.detach(), plan.interval, plan, config, record)
    return states, solved, record


def _solve(problem: Problem, interval: int, plan: Plan, config: NewtonConfig, record: Record) -> tuple[Tensor, Tensor]:
    if interval >= plan.length:
        record.walked += plan.length
        return walk(problem), torch.ones_like(problem.initial[..., 0], dtype=torch.bool)
    partition = Partition.of(problem.length, interval, problem.offsets, problem.initial.device)
    iteration = Iteration(problem, partition, config, patience=plan.patience)
    states = iteration.run()
    record.updates.extend(iteration.updates)
    record.attempts.append((interval, len(iteration.updates)))
    solved = iteration.solved
    if not any_true(~solved):
        return states, solved
    if config.on_stall == "raise":
        raise ConvergenceError(
            f"the parallel solve stalled after {len(record.updates)} iterations with intervals of {interval} steps; the largest update was "
            f"{record.updates[-1]:.1e}; allow the walk with NewtonConfig(on_stall='walk'), try a larger interval, or give the cell state_bounds",
            updates=tuple(record.updates),
            plan=plan,
        )
    record.repaired = True
    if _affordable(interval * GROWTH, plan):
        again, _ = _solve(replace(problem, guess=states), interval * GROWTH, plan, config, record)
    else:
        # From the very start, although leading intervals are settled: torch rounds by shape, and only the walk has the bits of the loop.
        again, _ = _solve(problem, plan.length, plan, config, record)
    keep = solved if problem.offsets is None else problem.along_time(solved)
    return torch.where(keep.unsqueeze(-1), states, again), solved


def _affordable(interval: int, plan: Plan) -> bool:
    """Whether to try intervals of this length. It depends on the plan alone, so that what a sequence goes through depends on its own numbers."""
    tried, each = 0.0, plan.interval
    while each <= interval:
        tried += EXPECTED * plan.sweep * each / plan.interval
        each *= GROWTH
    return tried <= AFFORDABLE * plan.walk and interval * 2 <= plan.length
