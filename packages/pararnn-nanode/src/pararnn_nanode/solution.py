"""What an integration found, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Solution:
    """States at the asked times.

    Attributes:
        x: states `(times, *batch, ...)`, in the order of `t`.
        t: the times `(times,)` in float64, or `(batch, times)` where every sample has its own.
        nfe: evaluations of the field in this call, whatever its later gradient may evaluate.
        steps: accepted steps; `rejected`: steps that an adaptive method tried again with a smaller one.
        method, gradient: how it was integrated, and how its gradient is had; "implicit" for a solve in parallel over depth, whose gradient is exact.
        drift: largest relative difference seen when a reversible method walked back; None before a backward pass and for other gradients.
        event: the time at which an event ended the integration, None where none did.
        iterations, residual, converged: of a solve in parallel over depth; None, None and True for a walk.
        reason: why it was walked or solved in parallel, in words.
    """

    x: Tensor
    t: Tensor
    nfe: int
    steps: int
    rejected: int = 0
    method: str
    gradient: str
    drift: float | None = None
    event: Tensor | None = None
    iterations: int | None = None
    residual: float | None = None
    converged: bool = True
    reason: str = ""

    @property
    def last(self) -> Tensor:
        """The state at the last of the times, `(*batch, ...)`."""
        return self.x[-1]

    def explain(self) -> str:
        """The integration in a few sentences."""
        together = self.iterations is not None and self.converged
        how = f" in {self.iterations} iterations (last update {self.residual:.1e})" if together else ""
        gradient = "exact gradient by an iteration back" if together else f"gradient by {self.gradient}"
        parts = [f"{self.steps} steps of {self.method}{how} with {self.nfe} evaluations of the field, {gradient}."]
        if self.rejected:
            parts.append(f"{self.rejected} steps were tried again with a smaller one.")
        if self.event is not None:
            parts.append(f"An event ended it at t = {float(self.event.detach()):.6g}.")
        if self.reason:
            parts.append(self.reason)
        return " ".join(parts)

    def __str__(self) -> str:
        return self.explain()
