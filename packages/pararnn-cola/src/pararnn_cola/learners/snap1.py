"""SnAp-1: real-time recurrent learning that follows a weight's influence inside its own unit only.

Source: J. Menick et al., "A practical sparse approximation for real time recurrent learning", 2020.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pararnn_cola.layers.base import Layer, Moment
from pararnn_cola.learners.eligibility import EligibilityLearner
from pararnn_cola.learners.forms import Form, Group
from pararnn_cola.learners.rows import Rows
from pararnn_cola.network import Network


class SnAp1(EligibilityLearner):
    """The rule: `dx_i[t]/dtheta = (leak + W_ii p_i[t-1]) dx_i[t-1]/dtheta + dx_i[t]/dtheta within the step`.

    Exact, equal to RTRL and BPTT, where `W` is diagonal and weights stand still. In several layers influence is followed within each layer, and the
    loss goes down within the step. It costs memory for `state (state + input + 1)` numbers a sample, and the time to go through them at each step.

    Options: those of `Learner`: `loss`, `optimizer`, `lr`, `update`, `clip`.
    """

    def __init__(self, network: Network, **options: Any) -> None:
        super().__init__(network, **options)
        self.slopes: list[Tensor | None] = [None] * len(network.recurrent)

    def _carried(self, index: int, layer: Layer, moment: Moment, rows: Rows) -> Tensor:
        wide = torch.promote_types(moment.slope.dtype, torch.float32)
        slope, before = moment.slope.to(wide), self.slopes[index]
        if before is None:
            before = torch.zeros_like(slope)
        self.slopes[index] = slope if rows.present is None else torch.where(rows.present.unsqueeze(-1), slope, before)
        carried: Tensor = layer.own_path(moment).to(wide) * before + moment.leak
        return carried

    def _forget(self, rows: Tensor | None) -> None:
        super()._forget(rows)
        # Zeros, though a trace of zero would carry nothing anyway: a slope that a bad input made NaN would make it NaN again.
        for index, slope in enumerate(self.slopes):
            self.slopes[index] = None if rows is None or slope is None else slope.masked_fill(rows.unsqueeze(-1), 0.0)

    def _memory(self) -> dict[str, Tensor]:
        return super()._memory() | {f"{index}.slope": slope for index, slope in enumerate(self.slopes) if slope is not None}

    def _groups(self, index: int, layer: Layer, batch: tuple[int, ...]) -> list[Group]:
        h = layer.zero_state(*(batch or (*self.network.lead, 1)))[0]
        slope = Form(torch.promote_types(h.dtype, torch.float32), (tuple(h.shape),))
        return [*super()._groups(index, layer, batch), Group({f"{index}.slope": slope})]

    def _recall(self, memory: dict[str, Tensor]) -> None:
        super()._recall(memory)
        self.slopes = [memory.get(f"{index}.slope") for index in range(len(self.slopes))]
