"""`train`: a learner over a stream, from its first step to its last."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pararnn.errors import ConfigError, DTypeError, InputError, ShapeError
from pararnn_cola.errors import NonFiniteLossError
from pararnn_cola.learners.base import Learner
from pararnn_cola.learners.result import StepResult
from pararnn_cola.streaming.checkpoints import RunFile
from pararnn_cola.streaming.interrupts import Interrupts
from pararnn_cola.streaming.items import Form, Step
from pararnn_cola.streaming.progress import Callback, Reporter, shown
from pararnn_cola.streaming.report import LossLog, TrainingReport
from pararnn_cola.streaming.sources import Position, source_of

OnStep: TypeAlias = Callable[[int, StepResult], object]
"""Called after each step with its number, counted from 1, and its result."""


def train(
    learner: Learner,
    data: Any,
    *,
    steps: int | None = None,
    progress: bool | Callback = False,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 10_000,
    resume: bool = True,
    check_every: int = 1000,
    on_step: OnStep | None = None,
    device: torch.device | str | None = None,
) -> TrainingReport:
    """Learn from `data` step by step, and report; memory does not grow with the length of the stream.

    `data` are steps `(u, y)`, `(u, y, weight)` or `Step`, from any iterable; or `sequences(loader)`; or `memmap_stream(array)`. They are moved to the
    network's device; `device` may name it, to be sure. `steps` ends the run after so many steps, counted from the start of the data.

    State passes from step to step, also from one call to the next, but for `Step.reset`, sequences and the start of a memory-mapped array, which
    begin anew: what was gathered until then moves the weights (`learner.apply()`), and so does what is left at the end of the run, open windows
    included. With `update="accumulate"` these are the only updates.

    With `checkpoint`, the run is saved there every `checkpoint_every` steps, at its end and at Ctrl-C. The same call then goes on from there, bit
    for bit, if `data` start from their beginning again; what was learned already is skipped. `resume=False` starts anew.

    A loss that is not finite raises on the CPU before it does harm. On a GPU, losses are looked at every `check_every` steps, since each look waits
    for the device. `progress=True` draws a bar on the error stream; a function is given a `Progress` a few times a second.

    Raises:
        StreamError: an item is no step, data end before the checkpoint, or the checkpoint is broken or of something else.
        ShapeError, DTypeError, InputError: an item does not fit the network; the message has its number.
        NonFiniteLossError: `data` holds the number of the `step`, and `first` and `last` of those looked at together.
        ConfigError: an option cannot work.
    """
    for name, value in (("steps", steps), ("checkpoint_every", checkpoint_every), ("check_every", check_every)):
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value}; it is a number of steps, at least 1", **{name: value})
    form = Form.of(learner.network)
    if device is not None and _placed(device) != form.device:
        raise ConfigError(f"device={device!s}, but the network is on {form.device}; move it there before making its optimizer and the learner")
    source, shows = source_of(data), shown(progress)
    losses = LossLog()
    file = None if checkpoint is None else RunFile(checkpoint, source)
    start = file.resume(learner, losses) if file is not None and resume else Position()
    run = Run(learner, losses, start, check_every)
    begin = time.perf_counter()
    with Interrupts() as interrupts, shows as show:
        reporter = Reporter(show, start.steps)
        try:
            if steps is None or steps > start.steps:
                for step, ends in source.steps(form, start):
                    interrupts.learning = True
                    result = run.learn(step, ends)
                    interrupts.step_done()
                    if on_step is not None:
                        on_step(run.position.steps, result)
                    reporter.update(run.position.steps, _least(steps, source.total), losses.running)
                    if file is not None and run.position.steps % checkpoint_every == 0:
                        run.look()
                        file.write(learner, run.position, losses)
                    if run.position.steps == steps:
                        break
        except KeyboardInterrupt:
            if file is not None and not interrupts.learning:
                run.look()
                file.write(learner, run.position, losses)
            raise
        run.look()
        if file is not None:
            # Before an open window is closed, so that a longer run can go on as if it had never stopped here.
            file.write(learner, run.position, losses)
        learner.apply()
        reporter.update(run.position.steps, _least(steps, source.total), losses.running, last=True)
    seconds = time.perf_counter() - begin
    position = run.position
    return TrainingReport(
        steps=position.steps,
        sequences=position.sequences + (position.inside > 0),
        mean_loss=losses.mean,
        loss_curve=tuple(losses.points),
        seconds=seconds,
        steps_per_second=(position.steps - start.steps) / seconds,
        resumed_at=start.steps,
    )


class Run:
    """A learner on its way through the data."""

    def __init__(self, learner: Learner, losses: LossLog, position: Position, check_every: int) -> None:
        self.learner, self.losses, self.position, self.check_every = learner, losses, position, check_every
        self._pending: list[tuple[int, Tensor]] = []

    def learn(self, step: Step, ends: bool) -> StepResult:
        """One step: the sequence before it closed where it begins another, its loss noted, its own sequence closed where it ends it."""
        number = self.position.steps
        try:
            self._begin(step)
            result = self.learner.step(step.u, step.y, step.weight, step.mask)
        except (ShapeError, DTypeError, InputError, NonFiniteLossError) as error:
            raise type(error)(f"item {number} of the stream: {error}", **{**error.data, "item": number}) from error
        _, sequences, inside = self.position
        self.position = Position(number + 1, sequences, inside + 1)
        if result.loss is not None:
            if result.loss.dim() == 0 and not result.loss.is_cuda:
                self.losses.add(number + 1, result.loss.item())
            else:
                self._pending.append((number + 1, result.loss))
                if len(self._pending) >= self.check_every:
                    self.look()
        if ends:
            self.learner.apply()
            self.position = Position(number + 1, sequences + 1, 0)
        return result

    def look(self) -> None:
        """Take in the losses that nobody has looked at yet, which waits for the device once.

        Raises:
            NonFiniteLossError: one of them is not finite; the weights have moved since.
        """
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        values = torch.stack([loss for _, loss in pending]).double().flatten(1).cpu() if pending[0][1].dim() else _column(pending)
        for (number, _), loss in zip(pending, values.mean(1).tolist(), strict=True):
            self.losses.add(number, loss)
        broken = (~values.isfinite()).any(1).nonzero()
        if len(broken):
            step, first, last = (pending[index][0] - 1 for index in (int(broken[0]), 0, -1))
            raise NonFiniteLossError(
                f"the loss of item {step} of the stream is {values[int(broken[0])].tolist()}, seen when items {first} to {last} were looked at "
                "together: the weights have moved on since. The rate is probably too high, or a target is not finite; go back to a checkpoint",
                step=step,
                first=first,
                last=last,
            )

    def _begin(self, step: Step) -> None:
        """Start the sequences that begin with `step`."""
        if step.reset is False or self.learner.states is None:
            return
        if isinstance(step.reset, Tensor):
            self.learner.reset(step.reset)
            return
        self.learner.apply()
        batch = tuple(step.u.shape[: step.u.dim() - self.learner.network.recurrent[0].unit_dims])
        if batch == self.learner.batch:
            self.learner.reset()
        else:
            self.learner.init(*batch)
        number, sequences, inside = self.position
        self.position = Position(number, sequences + (inside > 0), 0)


def _column(pending: list[tuple[int, Tensor]]) -> Tensor:
    return torch.stack([loss for _, loss in pending]).double().cpu().unsqueeze(1)


def _placed(device: torch.device | str) -> torch.device:
    """`device` with its index, as tensors have it."""
    return torch.empty(0, device=device).device


def _least(steps: int | None, total: int | None) -> int | None:
    return min((number for number in (steps, total) if number is not None), default=None)
