"""A learner brought back to where it was, if what was to change it fails."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType

from pararnn_cola.learners.base import Learner


class Undo(AbstractContextManager["Undo"]):
    """Changes of `learner` inside the context are undone if an error leaves it, Ctrl-C included."""

    def __init__(self, learner: Learner) -> None:
        self.learner, self.state = learner, learner.state_dict()
        gathered = learner.buffers.gathered
        # A gradient that was used already stays to be looked at; it is no part of the state.
        self.gradients = [(parameter, parameter.grad) for parameter in learner.network.parameters()]
        self.shadows, self.shown, self.spent = dict(gathered.shadows), dict(gathered.shown), gathered.spent

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            return
        self.learner.load_state_dict(self.state)
        gathered = self.learner.buffers.gathered
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        for held, before in ((gathered.shadows, self.shadows), (gathered.shown, self.shown)):
            held.clear()
            held.update(before)  # type: ignore[arg-type]
        gathered.spent = self.spent
