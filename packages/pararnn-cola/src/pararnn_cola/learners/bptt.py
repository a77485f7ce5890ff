"""Backpropagation through time: exact for the weights it was run with, at a memory that grows with the sequence."""

from __future__ import annotations

from typing import Any

from pararnn.errors import ConfigError
from pararnn_cola.learners.base import Update
from pararnn_cola.learners.window import WindowLearner
from pararnn_cola.network import Network


class BPTT(WindowLearner):
    """The exact gradient of all losses since the last `reset` or `apply`.

    The graph of every step stays until `flush`, `apply` or `reset`, so memory grows by one step's activations a step. Weights must not move in
    between: `update` is "accumulate", and `apply()` at the end of a sequence moves them.

    Options: those of `Learner`: `loss`, `optimizer`, `lr`, `update`, `clip`.

    Raises:
        ConfigError: `update="step"`.
    """

    def __init__(self, network: Network, *, update: Update = "accumulate", **options: Any) -> None:
        if update == "step":
            raise ConfigError(
                'update="step" would cut BPTT down to one step, for the graph ends where weights move; keep "accumulate" and call apply() after a '
                "sequence, or take TBPTT(network, k1=...), which moves the weights every k1 steps",
                update=update,
            )
        super().__init__(network, update=update, **options)
