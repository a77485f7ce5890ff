"""How large the next step is: error norms, the first step, and the change from step to step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import ConfigError

Norm = Callable[[Tensor], Tensor]
Tolerance = float | Tensor


def rms(x: Tensor) -> Tensor:
    """The root of the mean square of all elements; zero for a state without any."""
    norm: Tensor = torch.linalg.vector_norm(x) / max(x.numel(), 1) ** 0.5
    return norm


def mixed(parts: Sequence[Tensor]) -> Tensor:
    """The largest root mean square among tensors."""
    return torch.stack([rms(part).double() for part in parts]).amax()


class _Found:
    """Holds numbers; no list, since transforms take lists apart."""

    numbers: list[float]


class _Reveal(torch.autograd.Function):
    """Notes the values of a tensor, the largest one over all that `vmap` goes over."""

    generate_vmap_rule = False

    @staticmethod
    def forward(values: Tensor, found: _Found) -> Tensor:
        found.numbers = values.tolist()
        return values.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[None, None]:
        return None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return torch.zeros_like(tangent)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, None], values: Tensor, found: _Found) -> tuple[Tensor, None]:
        # All samples of a vmap take the same steps, so the largest error decides; NaN is the largest of all.
        worst = values if in_dims[0] is None else values.amax(in_dims[0])
        return _Reveal.apply(worst, found), None


def reveal(*values: Tensor) -> list[float]:
    """Numbers from real tensors without dimensions, in one read from the device; under `torch.func.vmap` the largest of all samples."""
    both = torch.stack([value.detach() for value in values]) if len(values) > 1 else values[0].detach().reshape(1)
    try:
        numbers: list[float] = both.tolist()
    except RuntimeError:
        found = _Found()
        _Reveal.apply(both, found)
        numbers = found.numbers
    return numbers


@dataclass(frozen=True, kw_only=True)
class Controller:
    """What an adaptive method holds itself to.

    Attributes:
        rtol, atol: a step is accepted where the norm of `error / (atol + rtol |x|)` is at most 1; tensors must broadcast to the state.
        norm: of that quotient over the whole state.
        first, smallest, largest: lengths of steps; None and infinity leave the choice to the error.
        safety, grow, shrink: the next step is `safety` times the one that the estimate allows, and at most `grow`, at least `shrink` times the last.
        max_steps: attempts, rejected ones included.

    Source: the PI control of Gustafsson (1991), with the constants of Hairer, Norsett and Wanner, Solving ODEs I, IV.2 in the second volume.
    """

    rtol: Tolerance
    atol: Tolerance
    norm: Norm = rms
    first: float | None = None
    smallest: float = 0.0
    largest: float = math.inf
    safety: float = 0.9
    grow: float = 10.0
    shrink: float = 0.2
    max_steps: int = 1_000_000

    def __post_init__(self) -> None:
        for name, tolerance in (("rtol", self.rtol), ("atol", self.atol)):
            if isinstance(tolerance, Tensor) and tolerance.requires_grad:
                raise ConfigError(f"{name} requires grad, but a solution is not differentiable in its tolerances; pass {name}.detach()")
            if not (bool((tolerance >= 0).all()) if isinstance(tolerance, Tensor) else 0 <= tolerance < math.inf):
                raise ConfigError(f"{name} must be at least 0 and finite, got {tolerance}")
        if not isinstance(self.rtol, Tensor) and not isinstance(self.atol, Tensor) and self.rtol == self.atol == 0:
            raise ConfigError("rtol and atol are both 0, which no step can meet; pass one above 0, such as rtol=1e-7")
        if self.first is not None and not 0 < abs(self.first) < math.inf:
            raise ConfigError(f"the first step must be finite and not 0, got {self.first}")
        if not (0 <= self.smallest <= self.largest and self.largest > 0):
            raise ConfigError(f"steps must lie between min_step >= 0 and max_step >= min_step, got {self.smallest} and {self.largest}")
        if not (0 < self.safety <= 1 <= self.grow and 0 < self.shrink < 1):
            raise ConfigError(
                f"steps change by safety in (0, 1], ifactor >= 1 and dfactor in (0, 1), got {self.safety}, {self.grow} and {self.shrink}"
            )
        if self.max_steps < 1:
            raise ConfigError(f"max_steps must be at least 1, got {self.max_steps}")

    def scale(self, x: Tensor) -> Tensor:
        """What an error of the size of `x >= 0` is measured by."""
        return torch.add(self.atol, x * self.rtol) if isinstance(self.atol, Tensor) else x * self.rtol + self.atol

    def next(self, length: float, error: float, before: float, order: int, *, rejected: bool) -> float:
        """The length of the step after one of `length` with norm `error`, where the accepted step earlier had `before`."""
        if not math.isfinite(error):
            return length * self.shrink
        if error == 0.0:
            return length * (1.0 if rejected else self.grow)
        # Without the term of the earlier error after a rejection: it speaks of another place.
        memory = 0.0 if error > 1.0 else 0.2 / order
        factor: float = self.safety * error ** -(1.0 / order - 0.75 * memory) * before**memory
        factor = min(1.0 if rejected or error > 1.0 else self.grow, max(self.shrink, factor))
        return length * factor
