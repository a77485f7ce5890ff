"""Saving a learner in the middle of a stream, and going on bit for bit."""

from __future__ import annotations

from abc import ABC
from typing import Any

import torch
from torch import Tensor

from pararnn_cola.errors import StreamError
from pararnn_cola.learners.buffers import GradientBuffers
from pararnn_cola.network import Network, States


class Checkpointed(ABC):
    """The part of a learner that knows all of what it carries from step to step."""

    network: Network
    optimizer: torch.optim.Optimizer
    buffers: GradientBuffers
    states: States | None
    batch: tuple[int, ...]
    steps: int
    _unlearned: bool

    def _memory(self) -> dict[str, Tensor]:
        """All that the rule keeps between steps besides states, weights and gradients."""
        return {}

    def _recall(self, memory: dict[str, Tensor]) -> None:
        """Take over what `_memory` gave, without copying."""
        if memory:
            raise StreamError(f"{type(self).__name__} keeps nothing between steps, but was given {', '.join(memory)}")

    def tensors(self) -> dict[str, Tensor]:
        """Everything that one step hands to the next besides weights and gradients, by name."""
        named = {f"memory.{name}": value for name, value in self._memory().items()}
        for index, state in enumerate(self.states or ()):
            named.update({f"state.{index}.{part}": tensor for part, tensor in enumerate(state)})
        return named

    def assign(self, named: dict[str, Tensor]) -> None:
        """Go on from what `tensors` gave, of this learner or of an equal one; the tensors are taken over, not copied."""
        states: list[list[Tensor]] = [[] for _ in self.network.recurrent]
        for name, tensor in named.items():
            kind, _, rest = name.partition(".")
            if kind == "state":
                states[int(rest.partition(".")[0])].append(tensor)
        if any(states):
            self.states = tuple(tuple(state) for state in states)
            first = states[0][0]
            self.batch = tuple(first.shape[: first.dim() - self.network.recurrent[0].unit_dims])
        else:
            self.states, self.batch = None, ()
        self._recall({name.removeprefix("memory."): tensor for name, tensor in named.items() if name.startswith("memory.")})

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on bit for bit: weights, optimizer, states, statistics, gradients not yet applied. Copies, safe to keep."""
        return {
            "rule": type(self).__name__,
            "network": {name: value.clone() for name, value in self.network.state_dict().items()},
            "optimizer": _copied(self.optimizer.state_dict()),
            "tensors": _copied(self.tensors()),
            "gradients": self.buffers.state_dict() if self._unlearned else None,
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict` of an equal learner.

        Raises:
            StreamError: `state` is of another rule; nothing has changed then.
        """
        if state.get("rule") != type(self).__name__:
            raise StreamError(f"the checkpoint is of {state.get('rule')!r}, this learner is a {type(self).__name__}", rule=state.get("rule"))
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(_copied(state["optimizer"]))
        device = next(self.network.parameters()).device
        self.assign({name: tensor.to(device, copy=True) for name, tensor in state["tensors"].items()})
        self.buffers.load_state_dict(state["gradients"])
        self._unlearned = state["gradients"] is not None
        self.steps = state["steps"]


def _copied(value: Any) -> Any:
    """A copy of nested dicts and lists with their tensors."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(part) for part in value)
    return value
