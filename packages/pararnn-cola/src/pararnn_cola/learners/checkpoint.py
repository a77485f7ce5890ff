"""Saving a learner in the middle of a stream, and going on bit for bit."""

from __future__ import annotations

from abc import ABC
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import ParaRNNError, sentence
from pararnn_cola.errors import StreamError
from pararnn_cola.learners.buffers import HALF, GradientBuffers
from pararnn_cola.learners.forms import Form, Group, check_forms, state_forms
from pararnn_cola.learners.optimizer_state import check_optimizer, load_optimizer
from pararnn_cola.learners.settings import compare_settings, settings_of
from pararnn_cola.learners.surroundings import keeps_state
from pararnn_cola.losses import Loss
from pararnn_cola.network import Network, States

PARTS = {"rule", "optimizer_kind", "settings", "network", "optimizer", "tensors", "gradients", "steps"}


class Checkpointed(ABC):
    """The part of a learner that knows all of what it carries from step to step."""

    network: Network
    loss: Loss
    update: str
    clip: float | None
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

    def _check_memory(self, memory: dict[str, Tensor], batch: tuple[int, ...]) -> None:
        """Raise `StreamError` if `memory` for samples of shape `batch` (`()`: there are none yet) is none of this rule's; nothing may change."""
        if strangers := [name for name, value in memory.items() if not isinstance(value, Tensor)]:
            raise StreamError(f"{', '.join(strangers)} of the checkpoint are no tensors; it is damaged")

    def _options(self) -> dict[str, Any]:
        """Options of the rule without which a checkpoint would go on as another stream."""
        return {}

    def _described(self) -> dict[str, Any]:
        return settings_of(self.network, self.loss, {"update": self.update, "clip": self.clip, **self._options()})

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

        It holds tensors, numbers and strings only, so `torch.load(weights_only=True)` reads it. What the learner and its layers were made with is
        told in it too.
        """
        return {
            "rule": type(self).__name__,
            "optimizer_kind": type(self.optimizer).__name__,
            "settings": self._described(),
            "network": {name: value.clone() for name, value in self.network.state_dict().items()},
            "optimizer": _copied(self.optimizer.state_dict()),
            "tensors": _copied(self.tensors()),
            "gradients": self.buffers.state_dict() if self._unlearned else None,
            "steps": self.steps,
        }

    @keeps_state
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict` of an equal learner, on any device.

        The options of the optimizer, its rate among them, are those of the checkpoint, because a scheduler may have changed them since it was made.
        Set another rate after loading, in `optimizer.param_groups`. Settings of layers are attributes named as arguments of `__init__`;
        functions, such as a loss of one's own, are told from one another by their names only.

        Raises:
            StreamError: `state` is of another rule, optimizer or network, of other options or settings of layers, or damaged; nothing has
                changed then.
        """
        self._check_origin(state)
        self._check_content(state)
        own = (self.network.state_dict(), self.tensors(), self.optimizer.state_dict())
        held = (_copied(own[0]), own[1], _copied(own[2]))
        device = self.buffers.flat[0].parameter.device
        try:
            self._take(state["network"], {name: tensor.to(device, copy=True) for name, tensor in state["tensors"].items()}, state["optimizer"])
        except Exception as error:
            self._take(*held)
            if isinstance(error, StreamError):
                raise
            reason = str(error) if isinstance(error, ParaRNNError) else sentence(error)
            raise StreamError(f"the checkpoint does not fit this learner ({reason}); build it as the one that was saved") from error
        self.buffers.load_state_dict(state["gradients"])
        self.steps = state["steps"]

    def _take(self, weights: dict[str, Tensor], tensors: dict[str, Tensor], optimizer: dict[str, Any]) -> None:
        load_optimizer(self.optimizer, _copied(optimizer))
        self.network.load_state_dict(weights)
        self.assign(tensors)

    def _check_origin(self, state: dict[str, Any]) -> None:
        if missing := sorted(PARTS - state.keys()):
            raise StreamError(f"the checkpoint has no {', '.join(missing)}; it is damaged, or no state_dict of a learner")
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

        compare_settings(state["settings"], self._described())

    def _check_content(self, state: dict[str, Any]) -> None:
        check_optimizer(self.optimizer, state["optimizer"])
        tensors, gradients, steps = state["tensors"], state["gradients"], state["steps"]
        states = {name: tensor for name, tensor in tensors.items() if name.startswith("state.")}
        batch = self._batch_of(states) if states else ()
        check_forms(states, [Group(state_forms(self.network, batch), needed=True)] if states else [])
        memory = {name.removeprefix("memory."): tensor for name, tensor in tensors.items() if name not in states}
        self._check_memory(memory, batch)
        forms = {n: Form(torch.float32 if p.dtype in HALF else p.dtype, (tuple(p.shape),)) for n, p in self.network.named_parameters()}
        check_forms(gradients or {}, [Group({name: form}) for name, form in forms.items()])
        if not isinstance(steps, int) or steps < 0:
            raise StreamError(f"the checkpoint was written after {steps!r} steps; it is damaged")

    def _batch_of(self, states: dict[str, Tensor]) -> tuple[int, ...]:
        first, lead = states.get("state.0.0"), self.network.lead
        batch = () if first is None else tuple(first.shape[: first.dim() - self.network.recurrent[0].unit_dims])
        if len(batch) != len(lead) + 1 or batch[:-1] != lead or batch[-1] < 1:
            found = "missing" if first is None else tuple(first.shape)
            raise StreamError(f"the checkpoint's state.0.0 is {found}; it is damaged, or of another network", found=found)
        return batch

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
