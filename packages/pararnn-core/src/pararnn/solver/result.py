"""What a solve has to say: the states, and how they were found."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from pararnn.errors import ConvergenceError
from pararnn.solver.planner import Plan


class Status(enum.Enum):
    """How a solve ended. Each value is a sentence, with what to try where something can be better."""

    CONVERGED = "every update fell below the tolerance: the states are the sequential ones"
    WALKED = "the plan was to walk step by step: the states are the sequential ones"
    REPAIRED = (
        "the iteration stalled, so what had not converged was walked: the states are the sequential ones, at more than their cost; "
        "if this is common, try a larger NewtonConfig(interval=...), give the cell state_bounds, or solver='sequential'"
    )
    NOT_FINITE = "the recurrence itself runs into infinity or NaN; look at the inputs, the weights and the sizes of the states"


@dataclass(frozen=True, kw_only=True)
class SolveResult:
    """The states of a solve and its record.

    Attributes:
        states: `(batch, time, state)`, differentiable.
        final: the last state of every sequence, `(batch, state)` or `(segments, state)`; the initial one where a sequence is empty.
        status: how it ended.
        converged: `(batch,)` or, for packed sequences, `(segments,)`: which sequences the parallel iteration itself solved.
        iterations: parallel sweeps that were made.
        updates: the largest update of each iteration, the estimate of the error of the states before it.
        walked: steps that were walked one after the other, whether planned or as a repair.
        plan: what was planned, and why.
        backend: the backend that solved it.
    """

    states: Tensor
    final: Tensor
    status: Status
    converged: Tensor
    iterations: int
    updates: tuple[float, ...]
    walked: int
    plan: Plan
    backend: str

    def raise_for_status(self) -> Self:
        """Return this result, or raise `ConvergenceError` where the states are not finite."""
        if self.status is Status.NOT_FINITE:
            raise ConvergenceError(f"{self.status.value} (plan: {self.plan})", result=self)
        return self

    def explain(self) -> str:
        """The record in sentences."""
        lines = [self.status.value + ".", self.plan.explain()]
        if self.updates:
            lines.append(f"{self.iterations} iterations, largest updates: " + ", ".join(f"{update:.1e}" for update in self.updates) + ".")
        if self.walked:
            lines.append(f"{self.walked} steps were walked one after the other.")
        return "\n".join(lines)
