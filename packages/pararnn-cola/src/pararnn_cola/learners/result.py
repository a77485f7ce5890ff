"""What one step of a learner gives."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Signals:
    """The signals of one layer at one step, each `(batch, *units)`, nothing divided by the batch."""

    instantaneous: Tensor
    """`d[t] = dL[t]/dx[t]`, what reaches the layer within the step"""
    used: Tensor
    """what the rule made of it: its stand-in for the exact `delta[t] = dL/dx[t]`"""


@dataclass(frozen=True, eq=False)
class StepResult:
    """The network's answer at one step, and what was learned from it; nothing in here holds a graph."""

    output: Tensor
    """`(batch, output)`, computed before the weights moved"""
    loss: Tensor | None
    """the weighted loss, mean over the batch, `()`; None in a step without a target"""
    signals: tuple[Signals, ...] | None = None
    """one a layer, lowest first, where they were asked for"""
