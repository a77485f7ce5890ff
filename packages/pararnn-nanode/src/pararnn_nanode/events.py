"""Where an event function crosses zero, and how the time of that depends on everything."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pararnn.errors import ConfigError, DifferentiationError, InputError
from pararnn.transforms import inside_transform
from pararnn_nanode.function import Layout

Flow: TypeAlias = Callable[[Tensor], Tensor]
"""The state `(*state)` at a float64 time without dimensions, differentiable in it."""


class Event:
    """`event_fn(t, y)` counted from the side on which it starts: positive until the first of its components crosses zero.

    Args:
        fn: gets the time in the (real) dtype of the state; may return several values, of which the first to cross counts.
    """

    def __init__(self, fn: Callable[[Tensor, Any], Any], layout: Layout, time: Tensor, x: Tensor) -> None:
        self.fn = fn
        self.layout = layout
        with torch.no_grad():
            self.signs: Tensor = torch.sign(self._raw(time.detach(), x.detach()))

    def _raw(self, time: Tensor, x: Tensor) -> Tensor:
        found = torch.as_tensor(self.fn(time.to(x.dtype.to_real()), self.layout.split(x)), device=x.device)
        if found.is_complex():
            raise ConfigError("event_fn returned a complex number, which crosses no zero; return its real part or its modulus")
        if found.numel() == 0:
            raise ConfigError("event_fn returned a tensor without elements; return at least one number")
        return found if found.is_floating_point() else found.to(x.dtype.to_real())

    def __call__(self, time: Tensor, x: Tensor) -> Tensor:
        """The smallest of the components, each positive at the start."""
        return (self._raw(time, x) * self.signs).amin()

    def value(self, time: float, x: Tensor) -> float:
        """The same as a number."""
        with torch.no_grad():
            found = self(torch.tensor(time, dtype=torch.float64, device=x.device), x.detach())
        try:
            number = float(found)
        except RuntimeError as error:
            raise InputError("events do not go through vmap, since every sample would end at a time of its own; loop over the samples") from error
        if math.isnan(number):
            raise InputError(f"event_fn returned NaN at t = {time:.6g}")
        return number


def crossing(value: Callable[[float], float], before: float, after: float, low: float, high: float) -> float:
    """The last number on the near side of the zero between `before` and `after`, where `value` is `low > 0` and `high <= 0`.

    The near side, so that an integration that goes on from there does not meet the same event at once. False position with the Illinois correction,
    halving where that is slow.
    """
    side = 0
    for count in range(200):
        if abs(after - before) <= 4 * math.ulp(max(abs(before), abs(after))):
            break
        part = low / (low - high) if count % 3 != 2 and math.isfinite(low - high) else 0.5
        middle = before + (after - before) * min(max(part, 0.0), 1.0)
        if middle in (before, after):
            middle = before + (after - before) / 2
            if middle in (before, after):
                break
        found = value(middle)
        if found > 0:
            before, low, high = middle, found, high / 2 if side > 0 else high
            side = 1
        else:
            after, high, low = middle, found, low / 2 if side < 0 else low
            side = -1
    return before


def differentiable(event: Event, flow: Flow, time: float, x: Tensor) -> tuple[Tensor, Tensor]:
    """Time and state of an event found at `time`, with first and second derivatives by the implicit function theorem.

    Args:
        flow: the solution around `time`; `x` is a tensor of its dtype and device.

    Raises:
        DifferentiationError: the event function does not change with time there.
    """
    start = torch.tensor(time, dtype=torch.float64, device=x.device)
    state = flow(start)
    value = event(start, state)
    if not torch.is_grad_enabled() or not (value.requires_grad or inside_transform()):
        return start, state
    slope = _slope(event, flow, start)
    if slope == 0.0 or not math.isfinite(slope):
        raise DifferentiationError(
            f"at the event at t = {time:.6g} the event function changes at a rate of {slope}, so the time of the event has no derivative; "
            "the solution touches zero without crossing it, or event_fn is not differentiable"
        )
    moved = start
    # Each of these steps with a fixed slope makes one more derivative right. Their values cancel: the time is what the search found.
    for _ in range(2):
        value = event(moved, flow(moved))
        moved = moved - (value - value.detach()).double() / slope
    return moved, flow(moved)


def _slope(event: Event, flow: Flow, time: Tensor) -> float:
    if inside_transform():
        return float(torch.func.grad(lambda t: event(t, flow(t)))(time).detach())
    with torch.enable_grad():
        at = time.detach().requires_grad_()
        value = event(at, flow(at))
        (found,) = torch.autograd.grad(value, at, allow_unused=True, retain_graph=True)
    return 0.0 if found is None else float(found)
