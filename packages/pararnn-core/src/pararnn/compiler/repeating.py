"""Further solves of a problem that was solved: the program, the task and the way to its operands are known."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from pararnn.cell import Drive, Step
from pararnn.compiler.catalogue import Compiled
from pararnn.compiler.engine import Engine
from pararnn.compiler.places import fetching
from pararnn.compiler.record import Record
from pararnn.compiler.solving import looks_at_once, solve_task, task_of
from pararnn.solver import drive as drives
from pararnn.solver.config import NewtonConfig
from pararnn.solver.problem import Problem
from pararnn.solver.result import SolveResult
from pararnn.solver.truth import is_finite
from pararnn.structures.diagonal import Diagonal


class Repeated:
    """Solves what has the form of `problem`, whose step was `compiled`, as `solve_compiled` does; see `pararnn.solver.again`."""

    def __init__(self, engine: Engine, compiled: Compiled, problem: Problem, config: NewtonConfig) -> None:
        self._compiled = compiled
        self._fetching = tuple(map(fetching, compiled.paths))
        leaves = drives.leaves(problem.drive)
        found = (*leaves, *(fetch(problem.step) for fetch in self._fetching))
        # What fits once fits always, because shapes and dtypes are part of the form.
        self._fits = all(one is fitted for one, fitted in zip(found, compiled.gathered(problem.step, leaves), strict=True))
        self._task = task_of(engine, compiled.program, problem.rows, problem.length, problem.initial.squeeze(1), None, config)

    def __call__(self, step: Step, drive: Drive, leaves: tuple[Tensor, ...], initial: Tensor) -> SolveResult:
        task = self._task
        tensors = [*leaves, *(fetch(step) for fetch in self._fetching)] if self._fits else self._compiled.gathered(step, leaves)
        states, record = solve_task(task, tensors, initial, None)
        if looks_at_once(states) and not math.isfinite(states.detach().sum().item()):
            problem = Problem(step=step, structure=Diagonal, drive=drive, initial=initial.unsqueeze(1), cell=getattr(step, "__self__", step))
            is_finite(problem, states)
        known: dict[str, Any] = {"states": states, "plan": task.plan, "backend": task.engine.name}
        return SolveResult.deferred(Record(task.plan, states, initial, record, None), **known)


def repeated(engine: Engine, problem: Problem, config: NewtonConfig) -> Repeated | None:
    """What solves problems of the form of `problem` by `engine`; None where it is packed, or its step cannot be compiled."""
    found = problem.compiled
    return None if problem.offsets is not None or isinstance(found, tuple) else Repeated(engine, found, problem, config)
