"""E-prop: eligibility traces with the memory that a unit has by itself, and the error of the moment as learning signal.

Source: G. Bellec et al., "A solution to the learning dilemma for recurrent networks of spiking neurons", 2020.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_cola.layers.base import Layer, Moment
from pararnn_cola.learners.eligibility import EligibilityLearner
from pararnn_cola.learners.forms import Form, Group
from pararnn_cola.learners.rows import Rows
from pararnn_cola.network import Network

Feedback = Literal["symmetric", "random"]


class EProp(EligibilityLearner):
    """The rule: `dx_i[t]/dtheta = leak dx_i[t-1]/dtheta + dx_i[t]/dtheta within the step`; what a unit does to itself through `W_ii` is left out.

    `feedback="symmetric"` sends the error back within the step through the true weights (`V^T e`, and through the layers above in a stack). "random"
    sends it straight to each layer through a fixed matrix `(output, state)` of normal entries with variance 1/state, drawn from `seed`, the same in
    all networks of an ensemble; it is part of checkpoints. The readout learns by its exact gradient in both.

    In an `RNNLayer`, which does not leak, the symmetric form is TBPTT1 and nothing more. In a leaky or spiking layer with `W = 0` it is exact.

    Options: `feedback`, `seed`, and those of `Learner`: `loss`, `optimizer`, `lr`, `update`, `clip`.
    """

    def __init__(self, network: Network, *, feedback: Feedback = "symmetric", seed: int = 0, **options: Any) -> None:
        super().__init__(network, **options)
        if feedback not in ("symmetric", "random"):
            raise ConfigError(f'feedback={feedback!r} is neither "symmetric" nor "random"', feedback=feedback)
        self.feedback = feedback
        self.matrices: list[Tensor] = []
        if feedback == "random":
            generator, readout = torch.Generator().manual_seed(seed), network.readout
            for layer in network.recurrent:
                state_size = layer.zero_state(*network.lead, 1)[0].shape[-1]
                drawn = torch.randn(readout.output_size, state_size, generator=generator, dtype=torch.float32, device="cpu")
                self.matrices.append((drawn / math.sqrt(state_size)).to(readout.weight))

    def _carried(self, index: int, layer: Layer, moment: Moment, rows: Rows) -> Tensor | float:
        return moment.leak

    def _output_gradient(self, index: int, error: Tensor, gradient: Tensor) -> Tensor:
        if not self.matrices:
            return gradient
        return error.to(gradient.dtype) @ self.matrices[index]

    def _memory(self) -> dict[str, Tensor]:
        return super()._memory() | {f"{index}.feedback": matrix for index, matrix in enumerate(self.matrices)}

    def _groups(self, index: int, layer: Layer, batch: tuple[int, ...]) -> list[Group]:
        kept = [Form(matrix.dtype, (tuple(matrix.shape),)) for matrix in self.matrices[index : index + 1]]
        return [*super()._groups(index, layer, batch), *(Group({f"{index}.feedback": form}, needed=True) for form in kept)]

    def _recall(self, memory: dict[str, Tensor]) -> None:
        super()._recall(memory)
        self.matrices = [memory[f"{index}.feedback"] for index in range(len(self.matrices)) if f"{index}.feedback" in memory]

    def _options(self) -> dict[str, Any]:
        # The seed is not among them: what was drawn from it is in the checkpoint.
        return {"feedback": self.feedback}

    def _settings(self) -> Iterator[str]:
        yield f"feedback={self.feedback!r}"
        yield from super()._settings()
