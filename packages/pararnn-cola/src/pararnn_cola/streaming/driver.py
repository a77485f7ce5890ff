"""`train`: a learner over a stream, from its first step to its last."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch

from pararnn.errors import ConfigError, ShapeError
from pararnn_cola.errors import StreamError
from pararnn_cola.learners.base import Learner
from pararnn_cola.learners.result import StepResult
from pararnn_cola.streaming.checkpoints import RunFile
from pararnn_cola.streaming.interrupts import Interrupts
from pararnn_cola.streaming.items import Form, Step
from pararnn_cola.streaming.progress import Callback, Reporter, shown
from pararnn_cola.streaming.report import LossLog, TrainingReport
from pararnn_cola.streaming.run import Run, batch_of
from pararnn_cola.streaming.sources import Position, Source, at_least_one, source_of
from pararnn_cola.streaming.undo import Undo

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
    for bit, if `data` start from their beginning again; what was learned already is skipped. `resume=False` starts anew. A checkpoint brings the
    options of its optimizer: a resumed run has the rate that was saved, whatever `learner` was made with. A new one is set by a scheduler, or on
    `learner.optimizer` once the checkpoint is loaded: at the first `on_step`, or after `learner.load_state_dict(torch.load(path)["learner"])`.

    Losses of steps are weighted. The weights of a task's sequences add up to 1 over their T steps, so with `update="step"` each update is 1/T of what
    it is with weights of 1: a rate that suits a stream is too low for them by that factor.

    A loss that is not finite raises on the CPU before it does harm. On a GPU, losses are looked at every `check_every` steps, since each look waits
    for the device; so are those of an ensemble, where one run that diverges ends all. `progress=True` draws a bar on the error stream; a function is
    given a `Progress` a few times a second.

    Raises:
        StreamError: an item is no step, there is none, data or `steps` end before the checkpoint, or it is broken or of something else; what concerns
            the checkpoint is found before anything has changed.
        ShapeError, DTypeError, InputError: an item does not fit the network; the message has its number.
        NonFiniteLossError: `data` holds the number of the `step`; where losses were looked at together, `first` and `last` of them, and the `runs`.
        ConfigError: an option cannot work.
    """
    steps = None if steps is None else at_least_one("steps", steps)
    checkpoint_every, check_every = at_least_one("checkpoint_every", checkpoint_every), at_least_one("check_every", check_every)
    form = _form(learner, device)
    if on_step is not None and not callable(on_step):
        raise ConfigError(f"on_step={on_step!r} is no function that takes a step's number and its result")
    source, shows = source_of(data), shown(progress)
    file = None if checkpoint is None else RunFile(checkpoint, source)
    saved = file.read() if file is not None and resume else None
    if file is None or saved is None:
        start, losses = Position(), LossLog()
        items = _begun(source, form, start, None)
    else:
        start, losses = saved.position, saved.losses
        if steps is not None and steps < start.steps:
            raise StreamError(f"{file.path} was written after {start.steps} steps, and steps={steps} ends before; give more, or resume=False")
        with Undo(learner):
            file.load(saved, learner)
            items = iter(()) if steps == start.steps else _begun(source, form, start, learner)
    del saved
    run = Run(learner, losses, start, check_every)
    begin = time.perf_counter()
    with Interrupts() as interrupts, shows as show:
        reporter = Reporter(show, start.steps)
        try:
            for step, ends in items:
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


def _form(learner: Any, device: torch.device | str | None) -> Form:
    """What the learner's network asks of a step.

    Raises:
        ConfigError: `learner` is none, or its network is not on the `device`.
    """
    if not isinstance(learner, Learner):
        kind = f"the class {learner.__name__}" if isinstance(learner, type) else f"a {type(learner).__name__}"
        raise ConfigError(f"train() was given {kind} as its learner; make one of a rule and a network, such as COLA(network)")
    form = Form.of(learner.network)
    if device is not None:
        try:
            # With its index, as tensors have it.
            placed = torch.empty(0, device=device).device
        except (RuntimeError, AssertionError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"device={device!r} cannot be used ({reason}); the network is on {form.device}", device=device) from error
        if placed != form.device:
            raise ConfigError(f"device={device!s}, but the network is on {form.device}; move it there before making its optimizer and the learner")
    return form


def _begun(source: Source, form: Form, start: Position, resumed: Learner | None) -> Iterator[tuple[Step, bool]]:
    """The steps from `start` on, the first of which has been read: it shows whether data and the learner that was `resumed` fit together.

    Raises:
        StreamError: there is no step at all, or the data end before the start.
        ShapeError: the first step has another batch than the learner.
    """
    items = source.steps(form, start)
    first = next(items, None)
    if first is None:
        if not start.steps:
            raise StreamError("the data have no step: they are empty, or an iterator that was read before; give them anew, from their start")
        return items
    step, _ = first
    if resumed is not None and resumed.states is not None and step.reset is not True and batch_of(step, resumed) != resumed.batch:
        raise ShapeError(
            f"item {start.steps} of the stream has {batch_of(step, resumed)} samples, but the checkpoint was written with {resumed.batch}; give the "
            "data it was made with",
            item=start.steps,
        )
    return itertools.chain((first,), items)


def _least(steps: int | None, total: int | None) -> int | None:
    return min((number for number in (steps, total) if number is not None), default=None)
