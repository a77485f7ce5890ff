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

    def values(self, time: Tensor, x: Tensor) -> Tensor:
        """All components in one dimension, each positive at the start."""
        return (self._raw(time, x) * self.signs).reshape(-1)

    def first(self, time: float, x: Tensor) -> int:
        """The component that has crossed zero at `time`, the farthest of several."""
        with torch.no_grad():
            return int(self.values(torch.tensor(time, dtype=torch.float64, device=x.device), x.detach()).argmin())

    def value(self, time: float, x: Tensor) -> float:
        """The smallest of the components as a number."""
        with torch.no_grad():
            found = self.values(torch.tensor(time, dtype=torch.float64, device=x.device), x.detach()).amin()
        try:
            number = float(found)
        except RuntimeError as error:
            raise InputError("events do not go through vmap, since every sample would end at a time of its own; loop over the samples") from error
        if math.isnan(number):
            raise InputError(f"event_fn returned NaN at t = {time:.6g}")
        return number


def crossing(value: Callable[[float], float], before: float, after: float, low: float, high: float) -> tuple[float, float]:
    """The last number before and the first one after the zero between `before` and `after`, where `value` is `low > 0` and `high <= 0`.

    An event is where the near one is, so that an integration that goes on from there does not meet it at once. False position with the Illinois
    correction, halving where that is slow, and from a zero that is met a short step to its other side.
    """
    side, reach = 0, 0.0
    slow, patience = 0, 2
    for _ in range(200):
        apart = abs(after - before)
        least = 2 * math.ulp(max(abs(before), abs(after)))
        if apart <= 2 * least:
            break
        if slow > patience or not math.isfinite(low - high):
            moved, slow, patience = apart / 2, 0, max(patience - 1, 0)
        else:
            reach = max(reach, least)
            short = min(reach, apart / 2)
            moved = min(max(apart * (low / (low - high)), short), apart - short)
            # Several short steps to the same side become longer ones: near a zero the values may be none for a while, up to their rounding.
            reach = reach * 4 if moved in (short, apart - short) else 0.0
        middle = before + math.copysign(moved, after - before)
        found = value(middle)
        if found > 0:
            before, low, high = middle, found, high / 2 if side > 0 else high
            side = 1
        else:
            after, high, low = middle, found, low / 2 if side < 0 else low
            side = -1
        left = abs(after - before) / apart
        slow = slow + 1 if left > 0.5 else 0
        patience = 2 if left < 0.1 else patience
    return before, after


def differentiable(event: Event, flow: Flow, time: float, x: Tensor, component: int) -> tuple[Tensor, Tensor]:
    """Time and state of an event found at `time`, with first and second derivatives by the implicit function theorem.

    Args:
        flow: the solution around `time`; `x` is a tensor of its dtype and device.
        component: that of the event function that crosses zero there.

    Raises:
        DifferentiationError: the event function does not change with time there, although the state has a gradient.
    """
    start = torch.tensor(time, dtype=torch.float64, device=x.device)
    state = flow(start)
    value = event.values(start, state)[component]
    if not torch.is_grad_enabled() or not (state.requires_grad or value.requires_grad or inside_transform()):
        return start, state
    slope = _slope(event, flow, start, component)
    if slope == 0.0 or not math.isfinite(slope):
        raise DifferentiationError(
            f"at the event at t = {time:.6g} the event function changes at a rate of {slope}, so the time of the event has no derivative; "
            "the solution touches zero without crossing it, or event_fn is not differentiable (a comparison, torch.sign): return the difference "
            "itself, or call under torch.no_grad() for values alone"
        )
    moved = start
    # Each of these steps with a fixed slope makes one more derivative right. Their values cancel: the time is what the search found.
    for _ in range(2):
        value = event.values(moved, flow(moved))[component]
        moved = moved - (value - value.detach()).double() / slope
    return moved, flow(moved)


def _slope(event: Event, flow: Flow, time: Tensor, component: int) -> float:
    if inside_transform():
        return float(torch.func.grad(lambda t: event.values(t, flow(t))[component])(time).detach())
    with torch.enable_grad():
        at = time.detach().requires_grad_()
        value = event.values(at, flow(at))[component]
        if not value.requires_grad:
            return 0.0
        (found,) = torch.autograd.grad(value, at, allow_unused=True, retain_graph=True)
    return 0.0 if found is None else float(found)
