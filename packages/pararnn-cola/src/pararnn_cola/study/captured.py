"""A sequence of training, steps and update, as one CUDA graph: launching kernels one by one costs more than small networks compute."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pararnn_cola.learners.base import Learner
from pararnn_cola.streaming.capture import aside, record

WARM_UP = 3
"""Sequences trained without the graph: they make the buffers that the graph then finds in place."""


class CapturedSequence:
    """Calls of `sequence`, which trains `learner` from zero states and gives losses, the first few as they are, the rest from a graph.

    Data must stand in tensors that keep their place, and nothing in `sequence` may depend on values, only on shapes. The result is overwritten by the
    next call.
    """

    def __init__(self, learner: Learner, sequence: Callable[[], Tensor], device: torch.device) -> None:
        self.learner, self.sequence, self.device = learner, sequence, device
        self.calls = 0
        self.result = torch.empty(0)
        self.replay: Callable[[], None] | None = None

    def __call__(self) -> Tensor:
        if self.calls < WARM_UP:
            self.calls += 1
            with aside(self.device):
                return self.sequence()
        if self.replay is None:
            # What a rule hands on to the next sequence has to lie where the graph will read it.
            before = self.learner.tensors()
            self.replay = record(lambda: self._body(before), self.device)
            self.learner.assign(before)
        self.replay()
        return self.result

    def _body(self, before: dict[str, Tensor]) -> None:
        """The sequence, and what a rule replaced copied back to where it was read from."""
        self.result = self.sequence()
        for name, now in self.learner.tensors().items():
            held = before.get(name)
            if held is not None and held.is_cuda and held.shape == now.shape and held.data_ptr() != now.data_ptr():
                held.copy_(now)
