"""What a task is: batches to learn from, in an order that a generator decides, and numbers that say how well a network does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from pararnn.errors import ConfigError, ShapeError
from pararnn_cola.network import Network
from pararnn_cola.streaming.items import Step
from pararnn_cola.tasks.evaluation import evaluating
from pararnn_cola.tasks.placement import Placement, loss_weights


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences to learn from.

    `inputs` are `(batch, time, input)`, `targets` `(batch, time, ...)`, `weights` of the loss `(time,)` or `(batch, time)`; `mask` `(batch, time)` is
    true where a sequence has a step at all, None where all of them have all.

    Raises:
        ShapeError: they do not fit together.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor
    mask: Tensor | None = None

    def __post_init__(self) -> None:
        size = tuple(self.inputs.shape[:2])
        if self.inputs.dim() < 3 or 0 in size:
            raise ShapeError(
                f"inputs (batch, time, input) with at least one sequence and step were expected, got {tuple(self.inputs.shape)}", shape=size
            )
        weighed = self.weights.shape if self.weights.dim() == 2 else (size[0], *self.weights.shape)
        for name, shape in (("targets", self.targets.shape[:2]), ("weights", weighed), ("mask", size if self.mask is None else self.mask.shape)):
            if tuple(shape) != size:
                values = getattr(self, name)
                raise ShapeError(
                    f"{name} of shape {tuple(values.shape)} do not fit {size[0]} sequences of {size[1]} steps", shape=tuple(values.shape)
                )

    @property
    def size(self) -> int:
        """How many sequences."""
        return self.inputs.shape[0]

    @property
    def length(self) -> int:
        """How many steps each."""
        return self.inputs.shape[1]

    def steps(self, lead: tuple[int, ...] = ()) -> Iterator[Step]:
        """The steps in their order, the first of which resets a stream.

        For an ensemble, whose `network.lead` is given, inputs and targets are repeated for each run, without a copy.
        """
        inputs, targets = (values.expand(*lead, *values.shape).unbind(len(lead) + 1) for values in (self.inputs, self.targets))
        weights = self.weights.tolist() if self.weights.dim() == 1 else self.weights.unbind(1)
        masks = [None] * self.length if self.mask is None else self.mask.unbind(1)
        return map(Step, inputs, targets, weights, masks, [True] + [False] * (self.length - 1))

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The batch on `device`, what is floating point in it as `dtype`."""

        def move(values: Tensor) -> Tensor:
            return values.to(device, dtype if values.is_floating_point() else None)

        mask = None if self.mask is None else move(self.mask)
        return type(self)(move(self.inputs), move(self.targets), move(self.weights), mask)


def checked_seed(seed: int) -> int:
    """`seed`, which data of a task's own are drawn by.

    Raises:
        ConfigError: it is no whole number that a generator takes.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63 - 1:
        raise ConfigError(f"seed={seed!r}; a seed is a whole number from 0 to {2**63 - 2}", seed=seed)
    return seed


class Task(ABC):
    """Sequences of `length` steps with a loss at `placement`.

    A subclass sets `name`, `loss`, `input_size` and `output_size`, and writes `_draw` and `_measure`. Data are made on the CPU in float32, so that a
    seed means the same sequences on every device.
    """

    name: ClassVar[str]
    loss: ClassVar[Literal["mse", "cross_entropy"]]
    input_size: int
    output_size: int

    def __init__(self, length: int, placement: Placement) -> None:
        self.weights = loss_weights(length, placement)
        self.length, self.placement = length, placement

    def batch(self, size: int, generator: torch.Generator, device: torch.device | str | None = None) -> Batch:
        """`size` sequences that `generator`, one of the CPU, decides, on `device`.

        Raises:
            ConfigError: `size` is below 1, or the generator is none of the CPU.
        """
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ConfigError(f"size={size!r}; a batch has at least 1 sequence", size=size)
        if not isinstance(getattr(generator, "device", None), torch.device):
            raise ConfigError(
                f"the generator is of type {type(generator).__name__}; give torch.Generator().manual_seed(...), so that data can be drawn again"
            )
        if generator.device.type != "cpu":
            raise ConfigError(
                f"the generator is one of {generator.device}; data are drawn on the CPU, so that they are the same on every device: "
                "give torch.Generator(), and device= for where the batch goes",
                device=str(generator.device),
            )
        drawn = self._draw(size, generator)
        return drawn if device is None else drawn.to(device)

    def evaluate(self, network: Network) -> dict[str, Tensor]:
        """How well `network` does on data that it is not trained on: numbers by their names, float64 on the CPU, each `network.lead`.

        The same data at every call. Nothing is learned, the mode of the network (`train`, `eval`) is left as it was, and no graph is kept.

        Raises:
            ConfigError: `network` is no Network, or gives another number of outputs than the task asks for.
        """
        if not isinstance(network, Network):
            advice = "give learner.network" if hasattr(network, "network") else "give a Network"
            raise ConfigError(f"{self.name} evaluates a Network, got a {type(network).__name__}; {advice}", type=type(network).__name__)
        if network.readout.output_size != self.output_size:
            raise ConfigError(
                f"{self.name} asks for {self.output_size} outputs and the network gives {network.readout.output_size}; "
                f"build it with input_size={self.input_size}, output_size={self.output_size}",
                outputs=network.readout.output_size,
            )
        with evaluating(network):
            return {name: value.to("cpu", torch.float64) for name, value in self._measure(network).items()}

    @abstractmethod
    def _draw(self, size: int, generator: torch.Generator) -> Batch:
        """`size` sequences on the CPU."""

    @abstractmethod
    def _measure(self, network: Network) -> dict[str, Tensor]:
        """The numbers of `evaluate`, each of shape `network.lead`."""

    def _options(self) -> dict[str, Any]:
        """What the task was built with, for `repr`."""
        return {"length": self.length, "placement": self.placement}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._options().items())})"
