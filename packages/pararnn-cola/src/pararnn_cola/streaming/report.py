"""What a run tells at its end: its losses, thinned so that a long run needs no more memory than a short one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

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

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        vars(self).update(state)
        self.points = [(int(step), float(loss)) for step, loss in state["points"]]


@dataclass(frozen=True, kw_only=True)
class TrainingReport:
    """How a run of `train` went; losses are weighted means over the batch, as `StepResult.loss` has them."""

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

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON can hold it."""
        return {**asdict(self), "loss_curve": [list(point) for point in self.loss_curve]}
