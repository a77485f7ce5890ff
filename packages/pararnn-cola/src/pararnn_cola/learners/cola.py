"""COLA: the exact signal replaced by a closed form with one slow coefficient a unit.

Near criticality signals change slowly, so that a unit's future signal is taken as a multiple of its present one. Then the sum that backpropagation
through time would form has the closed form `dt[t] = d[t] / (1 - mu p[t])`, with `mu` estimated from the signals themselves.

Source: W. Wang, K. Gao, G. Chen, "Global Credit Assignment via Dynamical Criticality", ICML 2026. Their text leaves open when `mu` is projected and
what a step without a loss does; the choices made here are in the documentation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_cola.layers.base import Layer, Moment, rows_like
from pararnn_cola.learners.buffers import HALF
from pararnn_cola.learners.forms import Form, Group, check_forms
from pararnn_cola.learners.rows import Rows
from pararnn_cola.learners.statistics import NAMES, ClosureConfig, ClosureStatistics
from pararnn_cola.learners.tbptt1 import SignalLearner
from pararnn_cola.network import Network

Project = Literal["use", "estimate"]


class COLA(SignalLearner):
    """The rule; `rho_alpha`, `rho_mu`, `margin`, `alpha_bound`, `eps` are those of `ClosureConfig`.

    `project="use"` bounds `mu p` where it is used, each sample by its own slope, so a signal always keeps its sign and grows by at most 1/margin;
    "estimate" bounds `mu` once, by the steepest slope of the batch it was estimated on, which is the literal reading of the source.

    It is a positive rescaling of TBPTT-1's signal, unit by unit and sample by sample: it cannot carry credit of the other sign, and gives none at
    steps without a loss.

    Options: `rho_alpha`, `rho_mu`, `margin`, `alpha_bound`, `eps`, `project`, and those of `Learner`: `loss`, `optimizer`, `lr`, `update`, `clip`.
    """

    def __init__(
        self,
        network: Network,
        *,
        rho_alpha: float | Tensor = 0.99,
        rho_mu: float | Tensor = 0.99,
        margin: float | Tensor = 0.1,
        alpha_bound: float | Tensor = 0.99,
        eps: float | None = None,
        project: Project = "use",
        **options: Any,
    ) -> None:
        super().__init__(network, **options)
        if project not in ("use", "estimate"):
            raise ConfigError(f'project={project!r} is neither "use" nor "estimate"', project=project)
        self.closure, self.project = ClosureConfig(rho_alpha, rho_mu, margin, alpha_bound, eps), project
        self.statistics: list[ClosureStatistics | None] = [None] * len(network.recurrent)
        # Of the last step, for each layer: d, p, dt and the leak, and the rows in which they are one half of a pair.
        self.previous: list[tuple[Tensor, ...] | None] = [None] * len(network.recurrent)
        self.valid: list[Tensor | bool] = [False] * len(network.recurrent)

    def _signal(self, index: int, layer: Layer, moment: Moment, instantaneous: Tensor, rows: Rows) -> Tensor:
        wide = instantaneous.dtype if instantaneous.dtype not in HALF else torch.float32
        d, p = instantaneous.to(wide), moment.slope.to(wide)
        # A leak may be a parameter, which the optimizer writes to before the next step reads it.
        leak = moment.leak.to(wide, copy=True) if isinstance(moment.leak, Tensor) else moment.leak
        statistics = self.statistics[index]
        if statistics is None:
            statistics = self.statistics[index] = ClosureStatistics(layer.pool(d), self.closure)
        used = d / (1 - self._feedback(layer, statistics, p, leak))
        previous, pair = self.previous[index], _both(self.valid[index], rows.live)
        if previous is not None and pair is not False:
            chosen = pair if isinstance(pair, Tensor) else None
            seen = None if chosen is None else layer.spread_seen(chosen)
            d_before, p_before, used_before, *leaks = previous
            statistics.observe_alpha(layer.pool(used * used_before, chosen), layer.pool(used_before * used_before, chosen), seen)
            alpha = layer.spread(statistics.alpha)
            expected = alpha * d_before
            a = torch.addcmul(expected * p, d, p_before, value=-1)
            if isinstance(leak, Tensor) or leak != 0.0:
                leak_before = leaks[0] if leaks else leak
                b = expected * (1 - leak * alpha) - d * (1 - leak_before * alpha)
            else:
                b = expected - d
            statistics.observe_mu(layer.pool(a * b, chosen), layer.pool(a * a, chosen), seen)
            if self.project == "estimate":
                self._project(layer, statistics, p, chosen)
        self._keep(index, layer, (d, p, used, leak) if isinstance(leak, Tensor) else (d, p, used), rows)
        return used.to(instantaneous.dtype)

    def _feedback(self, layer: Layer, statistics: ClosureStatistics, p: Tensor, leak: Tensor | float) -> Tensor:
        """`mu p` (and what the leak adds to it), bounded so that the denominator stays above the margin."""
        limit = statistics.limit
        feedback = layer.spread(statistics.mu) * p
        if isinstance(leak, Tensor) or leak != 0.0:
            feedback = feedback + leak * layer.spread(statistics.alpha)
        # With "estimate" this is the floor of the denominator only: slopes other than those of the estimate may exceed the bound below.
        return feedback.clamp(None if self.project == "estimate" else -limit, limit)  # type: ignore[arg-type]

    def _project(self, layer: Layer, statistics: ClosureStatistics, p: Tensor, chosen: Tensor | None) -> None:
        """Bound `mu` by the steepest slope among the rows that it was just estimated on."""
        if chosen is not None:
            p = torch.where(rows_like(chosen, p, layer.unit_dims), p, torch.zeros((), dtype=p.dtype, device=p.device))
        steepest = layer.peak(p.abs())
        limit = statistics.limit.squeeze(-1) if isinstance(statistics.limit, Tensor) else statistics.limit
        bound = torch.where(steepest > 0, limit / steepest, torch.full_like(steepest, float("inf")))
        statistics.mu.copy_(torch.minimum(torch.maximum(statistics.mu, -bound), bound))

    def _keep(self, index: int, layer: Layer, signals: tuple[Tensor, ...], rows: Rows) -> None:
        """Make this step the first half of the next pair; rows that have no step now keep the half they had."""
        before = self.previous[index]
        if rows.present is None:
            self.previous[index], self.valid[index] = signals, rows.live
            return
        if before is not None:
            # A leak may be one number a unit, the same in all rows.
            signals = tuple(
                torch.where(rows_like(rows.present, new, layer.unit_dims), new, old) if new.dim() == signals[0].dim() else new
                for new, old in zip(signals, before, strict=True)
            )
        was = self.valid[index]
        self.valid[index] = torch.where(rows.present, _as_rows(rows.live, rows.present), _as_rows(was, rows.present))
        self.previous[index] = signals

    def _pass(self, index: int, layer: Layer, moment: Moment, rows: Rows) -> None:
        was = self.valid[index]
        self.valid[index] = False if rows.present is None or was is False else _as_rows(was, rows.present) & ~rows.present

    def _forget(self, rows: Tensor | None) -> None:
        for index, was in enumerate(self.valid):
            self.valid[index] = False if rows is None or was is False else _as_rows(was, rows) & ~rows
        if rows is None:
            self.previous = [None] * len(self.previous)

    def _forget_statistics(self) -> None:
        self.statistics = [None] * len(self.statistics)

    def _memory(self) -> dict[str, Tensor]:
        named: dict[str, Tensor] = {}
        for index, statistics in enumerate(self.statistics):
            if statistics is not None:
                named.update({f"{index}.{name}": getattr(statistics, name) for name in NAMES})
            previous, valid = self.previous[index], self.valid[index]
            if previous is not None:
                named.update({f"{index}.previous.{part}": tensor for part, tensor in enumerate(previous)})
                # A bool, valid in all rows or in none, has no dimensions: so it comes back as what it was.
                named[f"{index}.valid"] = valid if isinstance(valid, Tensor) else torch.tensor(valid)
        return named

    def _recall(self, memory: dict[str, Tensor]) -> None:
        count = len(self.network.recurrent)
        self.statistics, self.previous, self.valid = [None] * count, [None] * count, [False] * count
        for index in range(count):
            if f"{index}.S" in memory:
                statistics = self.statistics[index] = ClosureStatistics(memory[f"{index}.S"], self.closure)
                for name in NAMES:
                    setattr(statistics, name, memory[f"{index}.{name}"])
            if f"{index}.valid" in memory:
                valid = memory[f"{index}.valid"]
                self.valid[index] = bool(valid) if valid.dim() == 0 else valid
                parts = sorted(name for name in memory if name.startswith(f"{index}.previous."))
                self.previous[index] = tuple(memory[name] for name in parts)

    def _check_memory(self, memory: dict[str, Tensor], batch: tuple[int, ...]) -> None:
        groups: list[Group] = []
        for index, layer in enumerate(self.network.recurrent):
            h = layer.zero_state(*(batch or (*self.network.lead, 1)))[0]
            whole, pooled = tuple(h.shape), layer.pool(h)
            wide = h.dtype if h.dtype not in HALF else torch.float32
            signal, leak = Form(wide, (whole,)), Form(wide, (whole, tuple(pooled.shape), tuple(layer.spread(pooled).shape)))
            groups.append(Group({f"{index}.{name}": Form(wide, (tuple(pooled.shape),)) for name in NAMES}))
            parts = {f"{index}.previous.{part}": signal for part in range(3)}
            groups += [Group(parts | {f"{index}.valid": Form(torch.bool, ((), batch))}), Group({f"{index}.previous.3": leak})]
        check_forms(memory, groups)

    def _options(self) -> dict[str, Any]:
        return vars(self.closure) | {"project": self.project}

    def _settings(self) -> Iterator[str]:
        yield f"rho_alpha={self.closure.rho_alpha}, rho_mu={self.closure.rho_mu}, margin={self.closure.margin}, project={self.project!r}"
        yield from super()._settings()


def _both(before: Tensor | bool, now: Tensor | bool) -> Tensor | bool:
    """The rows that are true in both."""
    if before is False or now is False:
        return False
    if before is True:
        return now
    return before if now is True else before & now


def _as_rows(valid: Tensor | bool, like: Tensor) -> Tensor:
    """`valid` as one entry a row."""
    return valid if isinstance(valid, Tensor) else torch.full_like(like, valid)
