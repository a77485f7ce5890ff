"""Truncated backpropagation through time: every so many steps, the latest losses go back through a bounded stretch of the past."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_cola.learners.result import StepResult
from pararnn_cola.learners.rows import Rows
from pararnn_cola.learners.window import WindowLearner
from pararnn_cola.network import Network


class TBPTT(WindowLearner):
    """Every `k1` steps, the losses of those steps go back through the last `k2` steps (`k2=None`: through `k1`). Each loss counts once.

    With `k2 = k1` the graph of the window is kept as it grows. With `k2 > k1` windows overlap: each is run again from the state `k2` steps ago,
    with the weights of the moment, at `1 + k2 / k1` times the forward cost. Either way memory does not grow with the stream. `flush`, `apply`
    and `reset` end a window early, so nothing is lost where a sequence is no multiple of `k1` long. With `update="step"` the weights move at the
    ends of windows.

    Options: `k1`, `k2`, and those of `Learner`: `loss`, `optimizer`, `lr`, `update`, `clip`.

    Raises:
        ConfigError: `k1` is below 1, or `k2` below `k1`: some losses would have no gradient then.

    Source: BPTT(h; h') of R. J. Williams, J. Peng, "An Efficient Gradient-Based Algorithm for On-Line Training of Recurrent Network Trajectories",
    Neural Computation 2 (1990), with h = k2 and h' = k1.
    """

    def __init__(self, network: Network, k1: int, k2: int | None = None, **options: Any) -> None:
        k2 = k1 if k2 is None else k2
        for name, value in (("k1", k1), ("k2", k2)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{name}={value!r}; a window is a whole number of steps, at least 1", **{name: value})
        if k2 < k1:
            raise ConfigError(
                f"k2={k2} is below k1={k1}, so the first {k1 - k2} losses of each window would have no gradient; give k2 >= k1, or a smaller k1",
                k1=k1,
                k2=k2,
            )
        super().__init__(network, **options)
        self.k1, self.k2 = k1, k2
        self.live = k1 == k2

    def _learn(self, u: Tensor, target: Tensor | None, rows: Rows, signals: bool) -> StepResult:
        result = super()._learn(u, target, rows, signals)
        del self.records[: max(0, len(self.records) - self.k2)]
        if self.owed >= self.k1:
            self.flush()
        return result

    def _due(self, rows: Rows) -> bool:
        return self.owed == 0

    def _options(self) -> dict[str, Any]:
        return {"k1": self.k1, "k2": self.k2}

    def _settings(self) -> Iterator[str]:
        yield f"k1={self.k1}, k2={self.k2}"
        yield from super()._settings()
