"""What a run tells at its end: its losses, thinned so that a long run needs no more memory than a short one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

POINTS = 512
"""A curve has at most so many points, and at least half of them once it is full."""
HORIZON = 100
"""Steps over which the running loss looks back."""


class LossLog:
    """The mean of all losses, a running one, and the curve; each point of the curve is the mean of equally many steps that had a loss."""

    def __init__(self) -> None:
        self.total, self.count, self.running = 0.0, 0, 0.0
        self.stride = 1
        self.points: list[tuple[int, float]] = []
        self._sum, self._gathered = 0.0, 0

    def add(self, step: int, loss: float) -> None:
        """Take in the loss of the step with that number, counted from 1."""
        self.total += loss
        self.count += 1
        self.running += (loss - self.running) / min(self.count, HORIZON)
        self._sum += loss
        self._gathered += 1
        if self._gathered == self.stride:
            self.points.append((step, self._sum / self.stride))
            self._sum, self._gathered = 0.0, 0
            if len(self.points) == POINTS:
                pairs = zip(self.points[::2], self.points[1::2], strict=True)
                self.points = [(late[0], (early[1] + late[1]) / 2) for early, late in pairs]
                self.stride *= 2

    @property
    def mean(self) -> float | None:
        """Over the steps that had a loss; None where there was none."""
        return self.total / self.count if self.count else None

    def state_dict(self) -> dict[str, Any]:
        """Numbers that `load_state_dict` goes on from."""
        return dict(vars(self))

    @classmethod
    def of(cls, state: dict[str, Any]) -> Self:
        """A log that goes on from what `state_dict` gave.

        Raises:
            TypeError, ValueError: it gave something else.
        """
        log = cls()
        if not isinstance(state, dict) or state.keys() != vars(log).keys():
            raise TypeError(f"its losses are {state!r:.60}")
        for name, value in vars(log).items():
            if type(state[name]) is not type(value):
                raise TypeError(f"{name} of the losses is {state[name]!r:.60}")
        vars(log).update(state)
        log.points = [(int(step), float(loss)) for step, loss in state["points"]]
        if log.stride < 1 or not 0 <= log._gathered < log.stride or log.count < 0:
            raise ValueError(f"losses with {log.count} steps, {log._gathered} of {log.stride} in a point")
        return log


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingReport:
    """How a run of `train` went; `loss_curve` has its losses by step.

    Losses are weighted means over the batch, as `StepResult.loss` has them: for a task's sequences, whose weights add up to 1 over T steps,
    `mean_loss` is 1/T of what it is with weights of 1.
    """

    steps: int
    """steps of the data that have been learned, those before a resume too"""
    sequences: int
    """sequences that ended, the last one of the data included"""
    mean_loss: float | None
    """over the steps that had a loss; None where none had"""
    loss_curve: tuple[tuple[int, float], ...]
    """`(step, mean loss since the point before)`, at most 512 points whatever the length"""
    seconds: float
    """that this call took"""
    steps_per_second: float
    """of this call"""
    resumed_at: int
    """steps that had been learned when this call began"""

    def __repr__(self) -> str:
        numbers = [f"{self.steps} step{'s' * (self.steps != 1)} in {self.sequences} sequence{'s' * (self.sequences != 1)}"]
        if self.resumed_at:
            numbers.append(f"resumed after {self.resumed_at}")
        numbers.append("no loss" if self.mean_loss is None else f"mean loss {self.mean_loss:.4g}")
        return f"TrainingReport({', '.join(numbers)}, {self.steps_per_second:,.0f} steps/s)"

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON can hold it."""
        return {**asdict(self), "loss_curve": [list(point) for point in self.loss_curve]}
