"""Alignment over a training."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from pararnn.errors import ConfigError
from pararnn_cola.alignment.measuring import measure_alignment
from pararnn_cola.alignment.reports import AlignmentReport
from pararnn_cola.learners.base import Learner
from pararnn_cola.tasks.base import Batch


@dataclass(frozen=True)
class TrackedAlignment:
    """Alignment after so many batches of a training."""

    batches: int
    report: AlignmentReport
    loss: float
    """of the batch learned just before, its weighted losses added over time; NaN before the first"""

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return asdict(self)


def track_alignment(learner: Learner, batches: Iterable[Batch], *, every: int = 100, on: Batch | None = None) -> list[TrackedAlignment]:
    """Train `learner` on `batches`, and measure its alignment before the first, then after each `every` of them, and after the last.

    `on` is the batch to measure on, the first one if left out: always the same, so that only the learner differs. With `update="accumulate"` the
    weights move once a batch.
    """
    if every < 1:
        raise ConfigError(f"every={every}; at least one batch lies between two measurements", every=every)
    tracked: list[TrackedAlignment] = []
    loss, count = math.nan, 0
    for batch in batches:
        on = batch if on is None else on
        if count % every == 0:
            tracked.append(TrackedAlignment(count, measure_alignment(learner, on), loss))
        loss = _learn(learner, batch)
        count += 1
    if on is None:
        raise ConfigError("there were no batches to train on; give at least one")
    if not tracked or tracked[-1].batches != count:
        tracked.append(TrackedAlignment(count, measure_alignment(learner, on), loss))
    return tracked


def _learn(learner: Learner, batch: Batch) -> float:
    learner.init(batch.inputs.shape[0])
    losses = []
    for step in batch.steps():
        losses.append(learner.step(step.u, step.y, step.weight, step.mask).loss)
    learner.apply()
    return sum(float(loss) for loss in losses if loss is not None)
