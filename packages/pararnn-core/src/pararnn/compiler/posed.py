"""The step of a problem as a request names it: something to compare, and to ask when it matters."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pararnn.solver.problem import Problem
from pararnn.structures.diagonal import Diagonal

if TYPE_CHECKING:
    from pararnn.compiler.identity import StepIdentity


@dataclass(frozen=True)
class PosedStep:
    """The step of a problem in a request: compared by its identity, traced when somebody asks about it.

    The problem is held weakly, because choices are remembered longer than tensors should live.
    """

    identity: StepIdentity
    problem: weakref.ref[Problem] = field(compare=False, repr=False)

    @staticmethod
    def of(problem: Problem) -> PosedStep | None:
        """The step of `problem`; None where it is not channelwise or there is no step to take, so that there is nothing to compile."""
        if problem.structure is not Diagonal or problem.linear or not problem.exact or problem.initial.is_complex() or problem.is_empty:
            return None
        return PosedStep(problem.identity, weakref.ref(problem))

    def obstacles(self) -> tuple[str, ...]:
        """Why the step cannot be compiled."""
        problem = self.problem()
        found = None if problem is None else problem.compiled
        return found if isinstance(found, tuple) else ()

    def __str__(self) -> str:
        return "traced"
