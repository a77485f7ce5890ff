"""How far a run is, for a bar on the terminal's error stream or a function of one's own; silent unless asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeAlias

from pararnn.errors import ConfigError

SECONDS_BETWEEN = 0.2


class Progress(NamedTuple):
    """Where a run stands."""

    steps: int
    total: int | None
    """None where nobody knows how long the stream is"""
    loss: float
    """running mean over about a hundred steps"""
    steps_per_second: float
    seconds_left: float | None


Callback: TypeAlias = Callable[[Progress], object]


class Reporter:
    """Calls `show` a few times a second, and at the end."""

    def __init__(self, show: Callback | None, first: int) -> None:
        self.show, self.first = show, first
        self.begin = self.due = time.perf_counter()

    def update(self, steps: int, total: int | None, loss: float, *, last: bool = False) -> None:
        """Tell if it is time to, or if this is the last chance."""
        if self.show is None or ((now := time.perf_counter()) < self.due and not last):
            return
        self.due = now + SECONDS_BETWEEN
        rate = (steps - self.first) / max(now - self.begin, 1e-9)
        left = None if total is None or not rate else max(total - steps, 0) / rate
        self.show(Progress(steps, total, loss, rate, left))


def shown(progress: bool | Callback) -> AbstractContextManager[Callback | None]:
    """What to call with the progress while the context is open: a bar for True, nothing for False.

    Raises:
        ConfigError: `progress` is neither a bool nor callable.
    """
    if progress is True:
        return _Bar()
    if progress is not False and not callable(progress):
        raise ConfigError(f"progress={progress!r} is neither True, False nor a function that takes a Progress", progress=progress)
    return nullcontext(progress or None)


class _Bar(AbstractContextManager[Callback]):
    """A bar with the rate, the running loss and the time that is left."""

    def __enter__(self) -> Callback:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Rich

        rate = TextColumn("{task.fields[rate]:,.0f} steps/s  loss {task.fields[loss]:.4g}")
        # Redrawn when it is updated: a thread that draws would take time from the stream.
        self.rich = Rich(
            TextColumn("training"), BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn(), console=Console(stderr=True), auto_refresh=False
        )
        self.rich.__enter__()
        task = self.rich.add_task("training", total=None, rate=0.0, loss=float("nan"))

        def show(progress: Progress) -> None:
            rate, loss = progress.steps_per_second, progress.loss
            self.rich.update(task, completed=progress.steps, total=progress.total, refresh=True, rate=rate, loss=loss)

        return show

    def __exit__(self, *failure: Any) -> None:
        self.rich.__exit__(*failure)
