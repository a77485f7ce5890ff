"""The small networks and streams that checks run on."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import ConfigError, ConformanceError, sentence
from pararnn_cola.learners.base import Learner
from pararnn_cola.network import Network

INPUT, STATE, OUTPUT, BATCH = 2, 5, 2, 3


def small_network() -> Network:
    """One vanilla layer of five units with a readout, in double precision."""
    return Network.rnn(INPUT, STATE, OUTPUT, seed=1, dtype=torch.float64)


@dataclass(frozen=True)
class Maker:
    """Equal learners of equal networks, as many as a check needs.

    `make_learner(network, **options)` is the class of the rule or a function; it is given `update` and `lr`. `make_network()` gives a network that
    the rule covers, in float64; it is called once, and copied. Inputs are `(batch, 2)` unless `make_input` makes others.
    """

    make_learner: Callable[..., Learner]
    make_network: Callable[[], Network] = small_network
    make_input: Callable[[int, int], Tensor] | None = None
    """`(time, batch) -> inputs (time, batch, *input)`, random, in float64"""

    def check(self) -> None:
        """Raise `ConfigError` if networks or inputs are none that checks can run on, which each of them would find on its own."""
        network = self._prototype
        if not isinstance(network, Network) or any(p.dtype != torch.float64 for p in network.parameters()):
            found = str(network.readout.bias.dtype) if isinstance(network, Network) else f"a {type(network).__name__}"
            raise ConfigError(
                f"make_network() gives {found}; checks compare with autograd to the last digits, so give a Network in float64: .double()"
            )
        try:
            self()
        except Exception as error:
            asked = "make_learner(network, update=..., lr=...) gives a learner of that network"
            raise ConfigError(f"{asked}; it raised {sentence(error)}") from error
        if self.make_input is None:
            return
        asked = "make_input(time, batch) gives random inputs (time, batch, *input) in float64"
        try:
            inputs = self.make_input(4, BATCH)
        except Exception as error:
            raise ConfigError(f"{asked}; make_input(4, {BATCH}) raised {sentence(error)}") from error
        if not isinstance(inputs, Tensor) or inputs.dtype != torch.float64 or inputs.shape[:2] != (4, BATCH):
            found = f"{tuple(inputs.shape)} in {inputs.dtype}" if isinstance(inputs, Tensor) else f"a {type(inputs).__name__}"
            raise ConfigError(f"{asked}; make_input(4, {BATCH}) gave {found}")
        try:
            network.advance(inputs[0], network.zero_state(BATCH))
        except Exception as error:
            raise ConfigError(f"{asked}; the network cannot take a step of what it gave, {tuple(inputs.shape[1:])}: {sentence(error)}") from error

    @functools.cached_property
    def _prototype(self) -> Network:
        return self.make_network()

    def network(self) -> Network:
        """A network like all others of this maker."""
        return copy.deepcopy(self._prototype)

    def __call__(self, *, frozen: bool = True) -> Learner:
        """A new learner, whose weights stay where they are (`frozen`) or move at every step, or when `walk` applies."""
        network = self.network()
        if frozen:
            return self.make_learner(network, update="accumulate", lr=0.05)
        try:
            return self.make_learner(network, update="step", lr=0.05)
        except ConfigError:
            return self.make_learner(network, update="accumulate", lr=0.05)

    def stream(self, time: int, batch: int = BATCH) -> tuple[Tensor, Tensor]:
        """Inputs and targets `(time, batch, ...)`."""
        inputs = torch.randn(time, batch, INPUT, dtype=torch.float64) if self.make_input is None else self.make_input(time, batch)
        return inputs, torch.randn(time, batch, self._prototype.readout.output_size, dtype=torch.float64)


def walk(learner: Learner, stream: tuple[Tensor, Tensor], start: int = 0, stop: int | None = None, *, apply: bool = True) -> list[Tensor]:
    """Step through a stretch of `stream`, moving the weights every ten steps where they do not move by themselves; the outputs."""
    outputs = []
    for time in range(start, len(stream[0]) if stop is None else stop):
        outputs.append(learner.step(stream[0][time], stream[1][time]).output.clone())
        if apply and learner.update == "accumulate" and time % 10 == 9:
            learner.apply()
    return outputs


def gradients(learner: Learner) -> dict[str, Tensor | None]:
    """What stands in `.grad`, by name, once a rule has delivered what it owes."""
    learner.flush()
    return {name: None if p.grad is None else p.grad.detach().clone() for name, p in learner.network.named_parameters()}


def snapshot(learner: Learner) -> dict[str, Any]:
    """Copies of all that a learner could change."""
    return {
        "weights": {name: p.detach().clone() for name, p in learner.network.named_parameters()},
        "gradients": {name: None if p.grad is None else p.grad.detach().clone() for name, p in learner.network.named_parameters()},
        "tensors": {name: tensor.detach().clone() for name, tensor in learner.tensors().items()},
        "optimizer": copy.deepcopy(learner.optimizer.state_dict()),
        "steps": learner.steps,
    }


def apart(one: Any, two: Any, path: str = "") -> str | None:
    """Where two nested values differ in a single bit; None where they do not."""
    if isinstance(one, dict) and isinstance(two, dict):
        if one.keys() != two.keys():
            return f"{path}: {', '.join(sorted(map(str, one.keys() ^ two.keys())))} on one side only"
        found = (apart(one[key], two[key], f"{path}.{key}".lstrip(".")) for key in one)
        return next((where for where in found if where is not None), None)
    if isinstance(one, list | tuple) and isinstance(two, list | tuple) and len(one) == len(two):
        found = (apart(first, second, f"{path}[{index}]") for index, (first, second) in enumerate(zip(one, two, strict=True)))
        return next((where for where in found if where is not None), None)
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        if one.shape != two.shape or one.dtype != two.dtype:
            return f"{path}: {tuple(one.shape)} in {one.dtype} and {tuple(two.shape)} in {two.dtype}"
        same = torch.equal(one, two) or (one.is_floating_point() and torch.equal(one.nan_to_num(), two.nan_to_num()))
        return None if same else f"{path} by up to {(one.double() - two.double()).abs().max().item():.1e}"
    return None if type(one) is type(two) and one == two else f"{path}: {one!r} and {two!r}"


def expect_same(one: Any, two: Any, fault: str) -> None:
    """Raise `ConformanceError` with `fault`, in which `{where}` stands for the place of the difference, if the values differ in a bit."""
    where = apart(one, two)
    if where is not None:
        raise ConformanceError(fault.format(where=where))
