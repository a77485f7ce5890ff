"""All tensors that a learner's step reads and writes, held at fixed addresses so that a recorded step finds them again.

What a step hands to the next are, for most rules, new tensors each time. A graph that was recorded reads the addresses of its recording, so
results are copied back to where they were read from, and whatever somebody else puts in (a reset, a checkpoint) is copied there before a replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_cola.learners.base import Learner

Signature: TypeAlias = tuple[Any, ...]
"""All that Python decides on before a step: names, shapes, and the values of flags, which a recorded step cannot look at."""


class BoundLearner:
    """`learner` with its tensors at the addresses that they have now.

    Attributes:
        signature: the signature of the moment; only from an equal one may a step be replayed.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.device = learner.buffers.flat[0].parameter.device
        self.signature = signature_of(learner)
        self.static = {name: tensor.detach().clone() for name, tensor in learner.tensors().items() if not self._is_flag(tensor)}
        self.optimizer = {key: tensor for key, tensor in _optimizer_tensors(learner) if not self._is_flag(tensor)}
        self.parameters = [(slot.parameter, slot.parameter.data_ptr()) for slot in learner.buffers.flat]
        self.gradients = [(p, p.grad) for p, _ in self.parameters if p.grad is not None]
        self.shadows = dict(learner.buffers.shadows)
        self.settings = list(_settings(learner))
        self._assign()

    def unchanged(self) -> bool:
        """Whether nobody has touched the learner since the last `bind` or `write_back`; quick, for it is asked at each replay."""
        learner, (_, _, spent, unlearned) = self.learner, self.signature
        buffers = learner.buffers
        same = learner.states is self._states and buffers.spent == spent and buffers.unlearned == unlearned
        return same and all(p.grad is gradient for p, gradient in self.gradients) and not any(buffers._touched(p) for p in self.shadows)

    @torch.no_grad()
    def bind(self) -> bool:
        """Copy what the learner holds now to the fixed addresses; False, with nothing done, if its signature is another one.

        Raises:
            ConfigError: an option of the optimizer has changed, or a parameter has moved: the recording holds the old one.
        """
        self.check()
        buffers = self.learner.buffers
        if self.learner.update == "accumulate":
            # Where gradients are only added up, it makes no difference to a step what became of the last ones.
            buffers.open()
            buffers.unlearned = True
        if signature_of(self.learner) != self.signature:
            return False
        self._collect()
        for parameter, gradient in self.gradients:
            current, shadow = buffers.current(parameter), self.shadows.get(parameter)
            for fixed in (gradient,) if shadow is None else (gradient, shadow):
                if current is not None and current is not fixed:
                    fixed.copy_(current)
        self._assign()
        return True

    @torch.no_grad()
    def write_back(self) -> None:
        """Copy what a step has left to where the next one reads it; part of the recording.

        The learner itself holds the results still, so it has to be given its tensors anew (`bind`) before a replay.
        """
        self._collect()
        for parameter, gradient in self.gradients:
            if parameter.grad is not None and parameter.grad is not gradient:
                gradient.copy_(parameter.grad)
            shadow, held = self.shadows.get(parameter), self.learner.buffers.shadows.get(parameter)
            if shadow is not None and held is not None and held is not shadow:
                shadow.copy_(held)

    def check(self) -> None:
        """Raise `ConfigError` if something that the recording holds by value or address is another one now."""
        now = list(_settings(self.learner))
        if now != self.settings:
            was, (group, key, value) = next(pair for pair in zip(self.settings, now, strict=True) if pair[0] != pair[1])
            raise ConfigError(
                f"the optimizer's {key} of group {group} is {value} now, but the captured step holds {was[2]}; capture again after changing it",
                key=key,
            )
        if any(parameter.data_ptr() != address for parameter, address in self.parameters):
            raise ConfigError("a parameter of the network has moved in memory since the step was captured; capture again")

    def _collect(self) -> None:
        """Copy streaming state and optimizer state to their addresses, all at once: one may be read where another is written."""
        pairs = [(self.static[name], tensor) for name, tensor in self.learner.tensors().items() if name in self.static]
        pairs += [(self.optimizer[key], tensor) for key, tensor in _optimizer_tensors(self.learner) if key in self.optimizer]
        moved = [(fixed, tensor) for fixed, tensor in pairs if fixed is not tensor]
        targets = {fixed.untyped_storage().data_ptr() for fixed, _ in moved}
        sources = [tensor.detach() for _, tensor in moved]
        sources = [tensor.clone() if tensor.untyped_storage().data_ptr() in targets else tensor for tensor in sources]
        if moved:
            torch._foreach_copy_([fixed for fixed, _ in moved], sources)

    def _assign(self) -> None:
        """Make the learner hold the tensors at the fixed addresses."""
        learner = self.learner
        flags = {name: tensor for name, tensor in learner.tensors().items() if self._is_flag(tensor)}
        learner.assign({**self.static, **flags})
        for (parameter, key), tensor in self.optimizer.items():
            learner.optimizer.state[parameter][key] = tensor
        gathered = learner.buffers.gathered
        gathered.shadows.update(self.shadows)
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
            if parameter in self.shadows:
                gathered.shown[parameter] = (gradient, gradient._version)
        self._states = learner.states

    def _is_flag(self, tensor: Tensor) -> bool:
        return is_flag(tensor, self.device)


def is_flag(tensor: Tensor, device: torch.device) -> bool:
    """Whether `tensor` is a number or bool that Python reads, rather than data on the `device`."""
    return tensor.dim() == 0 if device.type == "cpu" else tensor.device.type == "cpu"


def signature_of(learner: Learner) -> Signature:
    """The signature of a learner as it is now."""
    device = learner.buffers.flat[0].parameter.device
    tensors = tuple((name, tuple(t.shape), t.dtype, t.tolist() if is_flag(t, device) else None) for name, t in learner.tensors().items())
    places: dict[Tensor, int] = {parameter: place for place, parameter in enumerate(learner.network.parameters())}
    optimizer = tuple(sorted((places.get(p, -1), key, t.tolist() if is_flag(t, device) else None) for (p, key), t in _optimizer_tensors(learner)))
    return tensors, optimizer, learner.buffers.spent, learner.buffers.unlearned


def difference(before: Signature, after: Signature) -> str:
    """Which parts of two signatures differ, in words."""
    found = [str(entry[0]) for one, two in ((before[0], after[0]), (after[0], before[0])) for entry in one if entry not in two]
    found += [f"the optimizer's {entry[1]}" for one, two in ((before[1], after[1]), (after[1], before[1])) for entry in one if entry not in two]
    found += [name for name, index in (("whether .grad is spent", 2), ("whether a gradient waits", 3)) if before[index] != after[index]]
    return ", ".join(dict.fromkeys(found))


def moving(learner: Learner) -> dict[Any, dict[str, Any]]:
    """What the optimizer keeps, where its update is part of a step."""
    return learner.optimizer.state if learner.update == "step" else {}


def _optimizer_tensors(learner: Learner) -> Iterator[tuple[tuple[Tensor, str], Tensor]]:
    for parameter, state in moving(learner).items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                yield (parameter, key), value


def _settings(learner: Learner) -> Iterator[tuple[int, str, Any]]:
    for index, group in enumerate(learner.optimizer.param_groups if learner.update == "step" else ()):
        yield from ((index, key, value) for key, value in group.items() if key != "params" and not isinstance(value, Tensor))
