"""A learner on its way through data: sequences begun and ended, losses noted."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.errors import DTypeError, InputError, ShapeError
from pararnn_cola.errors import NonFiniteLossError
from pararnn_cola.learners.base import Learner
from pararnn_cola.learners.result import StepResult
from pararnn_cola.streaming.items import Step
from pararnn_cola.streaming.report import LossLog
from pararnn_cola.streaming.sources import Position


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
            told = self._other_batch(step) if isinstance(error, ShapeError) else None
            raise type(error)(f"item {number} of the stream: {told or error}", **{**error.data, "item": number}) from error
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
            row = values[int(broken[0])]
            step, first, last = (pending[index][0] - 1 for index in (int(broken[0]), 0, -1))
            runs = (~row.isfinite()).nonzero().flatten().tolist()
            which = f" of runs {', '.join(map(str, runs))} of {len(row)}" if len(row) > 1 else ""
            raise NonFiniteLossError(
                f"the loss{which} at item {step} of the stream is {row[runs].tolist()}, seen when items {first} to {last} were looked at together: "
                "the weights have moved on since. The rate is probably too high, or a target is not finite; go back to a checkpoint",
                step=step,
                first=first,
                last=last,
                runs=runs,
            )

    def _begin(self, step: Step) -> None:
        """Start the sequences that begin with `step`."""
        if step.reset is False or self.learner.states is None:
            return
        if isinstance(step.reset, Tensor):
            self.learner.reset(step.reset)
            return
        self.learner.apply()
        batch = batch_of(step, self.learner)
        if batch == self.learner.batch:
            self.learner.reset()
        else:
            self.learner.init(*batch)
        number, sequences, inside = self.position
        self.position = Position(number, sequences + (inside > 0), 0)

    def _other_batch(self, step: Step) -> str | None:
        """What to say of a batch that is not the one before's: nobody can call `init` in the middle of a run."""
        batch, before = batch_of(step, self.learner), self.learner.batch
        if self.learner.states is None or batch == before or batch[:-1] != before[:-1]:
            return None
        return (
            f"{batch} samples came after {before}; the last batch of a DataLoader is smaller unless it is made with drop_last=True, and where a new "
            "sequence begins with another batch, give Step(u, y, reset=True)"
        )


def batch_of(step: Step, learner: Learner) -> tuple[int, ...]:
    """The shape of the samples in `step`."""
    return tuple(step.u.shape[: step.u.dim() - learner.network.recurrent[0].unit_dims])


def _column(pending: list[tuple[int, Tensor]]) -> Tensor:
    return torch.stack([loss for _, loss in pending]).double().cpu().unsqueeze(1)
