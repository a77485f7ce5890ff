"""What a user may decide about a solve. Every field has a default that works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from pararnn.errors import ConfigError

# (atol, rtol) on the size of the update, by the dtype of the states. The update estimates the error of the states before it
# was made, so what is left after the last one is smaller still.
DEFAULT_TOLERANCES = {
    torch.float64: (1e-12, 1e-11),
    torch.float32: (1e-6, 2e-6),
    torch.bfloat16: (1e-2, 1e-2),
    torch.float16: (2e-3, 2e-3),
}


@dataclass(frozen=True, kw_only=True)
class NewtonConfig:
    """How a trajectory is solved in parallel.

    Attributes:
        interval: steps between two unknown states. 1 is ParaRNN's algorithm 1, the sequence length is the walk, `"auto"` lets the planner
            choose, the walk included, `"parallel"` lets it choose among the rest.
        max_iters: iterations to allow at each interval length. None takes the cell's `newton_iters` as a first budget, extended while
            the iteration makes progress; a number is a hard limit.
        newton_iters_by_t: a first budget by sequence length, `{length: iterations}`; the entry of the largest length not above the sequence's counts.
        atol, rtol: a sequence has converged when its update is at most `atol + rtol * |state|`; `"auto"` follows the dtype.
        on_stall: `"walk"` merges intervals and in the end walks what did not converge, so that the answer is the sequential one; `"raise"` raises
            `ConvergenceError` instead.
        jacobian: `"analytic"` insists on the cell's own formula, `"autograd"` ignores it, `"auto"` takes it where the cell has one.
        project: whether iterates are projected onto the cell's `state_bounds`.
        derivatives: how often the result can be differentiated, `"once"` or `"twice"` (which costs a second backward pass); a derivative beyond
            that raises `DifferentiationError`.
        backend: which backend of `solve` works, `"auto"` or a name that `pararnn doctor` lists.
        scan_backend: likewise for the scans inside.
    """

    interval: int | Literal["auto", "parallel"] = "auto"
    max_iters: int | None = None
    newton_iters_by_t: Mapping[int, int] | None = None
    atol: float | Literal["auto"] = "auto"
    rtol: float | Literal["auto"] = "auto"
    on_stall: Literal["walk", "raise"] = "walk"
    jacobian: Literal["auto", "analytic", "autograd"] = "auto"
    project: bool = True
    derivatives: Literal["once", "twice"] = "once"
    backend: str = "auto"
    scan_backend: str = "auto"

    def __post_init__(self) -> None:
        if self.interval not in ("auto", "parallel") and not _is_count(self.interval):
            raise ConfigError(f"interval must be 'auto', 'parallel' or an int of at least 1, got {self.interval!r}")
        if self.max_iters is not None and not _is_count(self.max_iters):
            raise ConfigError(f"max_iters must be None or an int of at least 1, got {self.max_iters!r}")
        for length, iterations in (self.newton_iters_by_t or {}).items():
            if not _is_count(length) or not _is_count(iterations):
                raise ConfigError(f"newton_iters_by_t maps lengths to iterations, both ints of at least 1, got {{{length!r}: {iterations!r}}}")
        if self.newton_iters_by_t and self.max_iters is not None:
            raise ConfigError("newton_iters_by_t and max_iters both set the budget; give one of them")
        for name in ("atol", "rtol"):
            value = getattr(self, name)
            if value != "auto" and not (isinstance(value, (int, float)) and 0 <= value < float("inf")):
                raise ConfigError(f"{name} must be 'auto' or a finite number of at least 0, got {value!r}")
        for name, allowed in (("on_stall", ("walk", "raise")), ("jacobian", ("auto", "analytic", "autograd")), ("derivatives", ("once", "twice"))):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {getattr(self, name)!r}")

    def tolerances(self, dtype: torch.dtype) -> tuple[float, float]:
        """`(atol, rtol)` for states of `dtype` (a complex dtype counts as its real one)."""
        atol, rtol = DEFAULT_TOLERANCES[dtype.to_real() if dtype.is_complex else dtype]
        return (atol if self.atol == "auto" else self.atol), (rtol if self.rtol == "auto" else self.rtol)

    def budget(self, length: int) -> int | None:
        """The first budget that `newton_iters_by_t` gives for a sequence of `length` steps; None where it has no entry."""
        known = [entry for entry in (self.newton_iters_by_t or {}) if entry <= length]
        return (self.newton_iters_by_t or {})[max(known)] if known else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
