"""What a solve has to say: the states, and how they were found."""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from pararnn.errors import ConvergenceError
from pararnn.selection import Considered
from pararnn.solver.planner import Plan


class Status(enum.Enum):
    """How a solve ended. Each value is a sentence, with what to try where something can be better."""

    CONVERGED = "every update fell below the tolerance: the states are the sequential ones"
    WALKED = "the steps were taken one after the other, as planned: the states are the sequential ones"
    REPAIRED = (
        "the iteration stalled, so what had not converged was solved again, with longer intervals or step by step: "
        "the states are the sequential ones, at more than the planned cost; "
        "if this is common, try a larger NewtonConfig(interval=...), give the cell state_bounds, or solver='sequential'"
    )
    NOT_FINITE = "the recurrence itself runs into infinity or NaN; look at the inputs, the weights and the sizes of the states"


@dataclass(frozen=True, kw_only=True)
class SolveResult:
    """The states of a solve and its record.

    The record of a solve by kernels on a GPU is read from there when a part of it is asked for, which waits for the device; `states` and `final`
    do not.

    Attributes:
        states: `(batch, time, state)`, differentiable.
        final: the last state of every sequence, `(batch, state)` or `(segments, state)`; the initial one where a sequence is empty.
        status: how it ended.
        converged: `(batch,)` or, for packed sequences, `(segments,)`: which sequences the parallel iteration itself solved.
        iterations: parallel sweeps that were made.
        updates: the largest update of each iteration, the estimate of the error of the states before it; empty where a kernel keeps the last alone.
        walked: steps that were walked one after the other, whether planned or as a repair.
        plan: what was planned, and why.
        backend: the backend that solved it.
        margin: the largest update of the last iteration in tolerances, at most 1 where it converged; None where a backend does not measure it.
        attempts: steps of an interval and iterations made with them, for each length of intervals that was tried; empty where only the plan's was.
        passed_over: backends of higher priority that were asked first, with their obstacles; empty where one was named.
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
    # A factory leaves no attribute on the class, which would hide that a deferred result has yet to ask for it.
    margin: float | None = field(default_factory=lambda: None)
    attempts: tuple[tuple[int, int], ...] = field(default_factory=lambda: ())
    passed_over: tuple[Considered, ...] = field(default_factory=lambda: (), repr=False)

    @classmethod
    def deferred(cls, source: object, **known: Any) -> Self:
        """A result that has the fields `known`, and takes each of the others from the attribute of `source` of that name when it is asked for."""
        result = object.__new__(cls)
        # Dynamo in older versions of torch follows this, and no update of `__dict__`.
        for name, value in {**known, "_source": source}.items():
            object.__setattr__(result, name, value)
        return result

    def __getattr__(self, name: str) -> Any:
        # Called where an attribute is missing, as the fields of a deferred result are at first.
        if name not in self.__dataclass_fields__ or "_source" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = getattr(self.__dict__["_source"], name)
        self.__dict__[name] = value
        return value

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def raise_for_status(self) -> Self:
        """Return this result, or raise `ConvergenceError` where the states are not finite."""
        if self.status is Status.NOT_FINITE:
            raise ConvergenceError(f"{self.status.value} (plan: {self.plan})", result=self)
        return self

    def explain(self) -> str:
        """The record in sentences: how it ended, who solved it and why nobody else, what was planned and what was done."""
        lines = [self.status.value + ".", self._solver(), self.plan.explain()]
        if self.updates:
            updates = iter(self.updates)
            for interval, count in self.attempts or ((0, len(self.updates)),):
                numbers = ", ".join(f"{update:.1e}" for update in itertools.islice(updates, count))
                which = f" with intervals of {_counted(interval, 'step')}" if interval else ""
                lines.append(f"{_counted(count, 'iteration')}{which}, largest updates: {numbers}.")
        elif self.iterations and self.margin is not None:
            lines.append(
                f"{_counted(self.iterations, 'iteration')} where most were needed; the last updates were at most {self.margin:.2g} of the tolerance."
            )
        if self.walked and self.iterations:
            lines.append(f"What was left was walked, {_counted(self.walked, 'step')} one after the other.")
        return "\n".join(lines)

    def _solver(self) -> str:
        """The backend, and what kept those from serving that would have been taken before it and run on this device."""
        others = [one for one in self.passed_over if one.is_for(self.states.device.type)]
        return "; ".join((f"Solved by {self.backend}", *(f"{one.label} could not: {'; '.join(one.reasons)}" for one in others))) + "."


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
