"""How long intervals should be, and why.

Few lanes and long sequences want intervals near the square root of the length; many lanes want the walk, which touches each element once. The
cost model of `pararnn.solver.step_costs` tells where one turns into the other.
"""

from __future__ import annotations

import itertools
import math
import weakref
from dataclasses import dataclass
from typing import Any

import torch

from pararnn.solver import drive as drives
from pararnn.solver.config import NewtonConfig
from pararnn.solver.problem import Problem
from pararnn.solver.step_costs import Costs

# A sequence this short is walked without further thought: thinking costs more.
SHORT = 24
# Sweeps that an interval chosen by the user may take.
FORCED_PATIENCE = 64


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The chosen interval and the estimates behind it.

    Attributes:
        interval: steps of an interval; `length` means the walk.
        length: steps of the longest sequence.
        lanes: channels that run side by side, `batch * state`.
        walk: estimated seconds of the walk.
        sweep: estimated seconds of one parallel sweep with Jacobians at this interval.
        parallel: estimated seconds of a typical parallel solve at this interval.
        patience: sweeps to allow before longer intervals are tried.
        by_autograd: whether gradients of a walk are estimated to cost less by autograd through its steps than by the reverse scan.
        reason: the choice in words.
    """

    interval: int
    length: int
    lanes: int
    walk: float
    sweep: float
    parallel: float
    patience: int
    by_autograd: bool
    reason: str

    @property
    def walks(self) -> bool:
        """Whether the plan is to walk step by step."""
        return self.interval >= self.length

    def explain(self) -> str:
        """The plan and its reason in one sentence."""
        steps = "steps" if self.interval > 1 else "step"
        what = "walk" if self.walks else f"intervals of {self.interval} {steps}, {math.ceil(self.length / self.interval)} at once"
        return f"Plan for {self.length} steps of {self.lanes} lanes: {what}, because {self.reason}."

    def __str__(self) -> str:
        return self.explain()


def compared(what: str, parallel: str, walk: str, against: bool) -> str:
    """Why `what` or the walk was chosen, from the estimates of both; `against` says that it had to be `what`, though the walk would be quicker."""
    if against:
        return f"a parallel solve was asked for (estimated at {parallel}; the walk at {walk} would be quicker)"
    return f"{what} is estimated at {parallel} and the walk at {walk}"


def plan(problem: Problem, config: NewtonConfig) -> Plan:
    """The interval that `config` asks for, or the one that the cost model finds cheapest; remembered for each cell and shape."""
    longest = problem.length
    if problem.offsets is not None:
        longest = max((end - start for start, end in itertools.pairwise(problem.offsets)), default=0)
    leaves = tuple(tuple(leaf.shape) for leaf in drives.leaves(problem.drive))
    asked = (
        config.interval,
        longest,
        leaves,
        problem.initial.shape,
        problem.initial.dtype,
        problem.initial.device,
        problem.structure,
        problem.analytic is None,
    )
    memory = _memory(problem.cell)
    key = (*asked, torch.get_num_threads())
    if key not in memory:
        memory[key] = _plan(problem, config, longest)
    return memory[key]


def _plan(problem: Problem, config: NewtonConfig, longest: int) -> Plan:
    facts: dict[str, Any] = {"length": longest, "lanes": problem.rows * problem.state_size}
    if problem.rows * longest == 0 or (config.interval == "auto" and longest <= SHORT):
        reason = f"a sequence of at most {SHORT} steps is walked"
        narrow = problem.structure.cost(problem.state_size)[1] <= 4 * problem.state_size
        return Plan(interval=longest, walk=0.0, sweep=0.0, parallel=0.0, patience=0, by_autograd=not narrow, reason=reason, **facts)
    costs = Costs.of(problem, longest)
    walk = costs.walk()
    facts |= {"by_autograd": costs.adjoint() > costs.backpropagation()}
    if isinstance(config.interval, int):
        interval = min(config.interval, longest)
        facts |= {"walk": walk, "sweep": costs.sweep(interval), "parallel": costs.parallel(interval)}
        return Plan(interval=interval, patience=FORCED_PATIENCE, reason=f"interval={config.interval} was asked for", **facts)
    parallel, best = min((costs.parallel(interval), interval) for interval in _candidates(longest))
    sweep = costs.sweep(best)
    if best >= longest:
        return Plan(interval=longest, walk=walk, sweep=sweep, parallel=walk, patience=0, reason="the sequence is too short to be cut", **facts)
    insists = config.interval == "parallel"
    verdict = compared(
        f"a parallel solve with intervals of {best} steps", f"{parallel * 1e3:.1f} ms", f"{walk * 1e3:.1f} ms", insists and parallel > walk
    )
    interval = best if parallel < walk or insists else longest
    patience = max(3, min(FORCED_PATIENCE, int(walk / sweep)))
    return Plan(interval=interval, walk=walk, sweep=sweep, parallel=parallel, patience=patience, reason=verdict, **facts)


def _candidates(length: int) -> list[int]:
    """Powers of two and the steps between them, below the length."""
    sizes = {round(2 ** (half / 2)) for half in range(2 * length.bit_length())}
    return sorted(size for size in sizes if size < length) or [length]


# The plans of each cell, by what they depend on; a cell that is gone is forgotten, and one with very many shapes starts over.
_plans: weakref.WeakKeyDictionary[Any, dict[Any, Plan]] = weakref.WeakKeyDictionary()
REMEMBERED = 1024


def _memory(cell: Any) -> dict[Any, Plan]:
    try:
        memory = _plans.setdefault(cell, {})
    except TypeError:
        # What cannot be held weakly is planned each time.
        return {}
    if len(memory) >= REMEMBERED:
        memory.clear()
    return memory
