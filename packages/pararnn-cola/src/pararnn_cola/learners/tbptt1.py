"""Truncation after one step: each loss changes the weights through its own step only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_cola.layers.base import Layer, Moment
from pararnn_cola.learners.closed_form import ClosedFormLearner
from pararnn_cola.learners.rows import Rows
from pararnn_cola.network import Network


class SignalLearner(ClosedFormLearner):
    """A rule that replaces the exact signal `delta[t] = dL/dx[t]` by one it can have at time t; a subclass writes `_signal`.

    A rule that keeps something between steps writes `_forget`, `_memory` and `_recall` too.

    Options: those of `Learner`: `loss`, `optimizer`, `lr`, `update`, `clip`.
    """

    def _contribute(
        self,
        index: int,
        layer: Layer,
        moment: Moment,
        output_gradient: Tensor,
        instantaneous: Tensor,
        rows: Rows,
        buffers: dict[str, Tensor],
        scale: float,
    ) -> Tensor | None:
        used = self._signal(index, layer, moment, instantaneous, rows)
        layer.add_gradients(buffers, used, output_gradient, moment, scale)
        return used

    def _signal(self, index: int, layer: Layer, moment: Moment, instantaneous: Tensor, rows: Rows) -> Tensor:
        """The stand-in for `delta[t]`, from `instantaneous` `d[t]`; rows without a loss have zeros there."""
        raise NotImplementedError


class TBPTT1(SignalLearner):
    """Backpropagation through the step itself, `delta[t] = hidden_gain * d[t]`.

    `hidden_gain` multiplies the gradients of the recurrent layers, not those of the readout: a larger step for them, the honest control for rules
    that rescale signals. An optimizer that divides by the size of gradients, as Adam does, undoes it unless `clip` comes between. A tensor
    `(runs, 1, 1)` gives each network of an ensemble its own.

    Options: `hidden_gain`, and those of `Learner`: `loss`, `optimizer`, `lr`, `update`, `clip`.
    """

    def __init__(self, network: Network, *, hidden_gain: float | Tensor = 1.0, **options: Any) -> None:
        super().__init__(network, **options)
        gains = torch.as_tensor(hidden_gain)
        if not bool(((gains >= 0) & gains.isfinite()).all()):
            raise ConfigError(f"hidden_gain={hidden_gain}; a gain is finite and not negative", hidden_gain=hidden_gain)
        self.hidden_gain = hidden_gain

    def _signal(self, index: int, layer: Layer, moment: Moment, instantaneous: Tensor, rows: Rows) -> Tensor:
        gain = self.hidden_gain
        if isinstance(gain, Tensor):
            return gain.to(instantaneous) * instantaneous
        return instantaneous if gain == 1.0 else gain * instantaneous

    def _options(self) -> dict[str, Any]:
        return {"hidden_gain": self.hidden_gain}

    def _settings(self) -> Iterator[str]:
        yield f"hidden_gain={self.hidden_gain}"
        yield from super()._settings()
