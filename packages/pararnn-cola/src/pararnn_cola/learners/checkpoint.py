"""Saving a learner in the middle of a stream, and going on bit for bit."""

from __future__ import annotations

from abc import ABC
from typing import Any

import torch
from torch import Tensor

from pararnn_cola.errors import StreamError
from pararnn_cola.learners.buffers import GradientBuffers
from pararnn_cola.learners.surroundings import keeps_state
from pararnn_cola.network import Network, States


class Checkpointed(ABC):
    """The part of a learner that knows all of what it carries from step to step."""

    network: Network
    optimizer: torch.optim.Optimizer
    buffers: GradientBuffers
    states: States | None
    batch: tuple[int, ...]
    steps: int

    @property
    def _unlearned(self) -> bool:
        """Whether a gradient waits for an optimizer; learners of one network share it, as they share `.grad`."""
        return self.buffers.unlearned

    @_unlearned.setter
    def _unlearned(self, value: bool) -> None:
        self.buffers.unlearned = value

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
        """All that is needed to go on bit for bit: weights, optimizer, states, statistics, gradients not yet applied. Copies, safe to keep.

        It holds tensors, numbers and strings only, so `torch.load(weights_only=True)` reads it.
        """
        return {
            "rule": type(self).__name__,
            "optimizer_kind": type(self.optimizer).__name__,
            "network": {name: value.clone() for name, value in self.network.state_dict().items()},
            "optimizer": _copied(self.optimizer.state_dict()),
            "tensors": _copied(self.tensors()),
            "gradients": self.buffers.state_dict() if self._unlearned else None,
            "steps": self.steps,
        }

    @keeps_state
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict` of an equal learner, on any device.

        Raises:
            StreamError: `state` is of another rule, optimizer or network; nothing has changed then.
        """
        self._check_origin(state)
        try:
            self.optimizer.load_state_dict(_copied(state["optimizer"]))
        except ValueError as error:
            raise StreamError(f"the checkpoint's optimizer moved other parameters than this one ({error}); make it from the same") from error
        self.network.load_state_dict(state["network"])
        device = self.buffers.flat[0].parameter.device
        self.assign({name: tensor.to(device, copy=True) for name, tensor in state["tensors"].items()})
        self.buffers.load_state_dict(state["gradients"])
        self.steps = state["steps"]

    def _check_origin(self, state: dict[str, Any]) -> None:
        mine = {"rule": type(self).__name__, "optimizer_kind": type(self.optimizer).__name__}
        for key, value in mine.items():
            if state.get(key) != value:
                raise StreamError(f"the checkpoint is of {state.get(key)!r}, this learner's {key} is {value!r}", **{key: state.get(key)})
        saved, own = state["network"], self.network.state_dict()
        for name in [*own, *saved]:
            kinds = [f"{tuple(held[name].shape)} in {held[name].dtype}" if name in held else "absent" for held in (saved, own)]
            if kinds[0] != kinds[1]:
                raise StreamError(
                    f"{name} is {kinds[0]} in the checkpoint and {kinds[1]} in this network; build the network as it was when it was saved", name=name
                )

    def __getstate__(self) -> dict[str, Any]:
        # Neither copies nor pickles of a parameter keep its .grad, which holds what was gathered.
        return vars(self) | {"_gradients": self.buffers.state_dict() if self._unlearned else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        gradients = state.pop("_gradients")
        vars(self).update(state)
        self.buffers.load_state_dict(gradients)


def _copied(value: Any) -> Any:
    """A copy of nested dicts and lists with their tensors."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(part) for part in value)
    return value
