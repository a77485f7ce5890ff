"""Where a walk reads weights: the times of all steps at once, cut into blocks of steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from pararnn.errors import ShapeError
from pararnn_nanode.fields.base import Field, Weights
from pararnn_nanode.integrate.methods import Equation, Method
from pararnn_nanode.integrate.schedule import Schedule

Drive: TypeAlias = Tensor | Callable[[Tensor], Tensor] | None
Rows: TypeAlias = list[tuple[Weights, ...]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Reads:
    """The times at which a method reads weights.

    Attributes:
        times: `(steps, nodes)` or `(steps, nodes, samples)`, float64; `anchors`: lower ends of the steps, `(steps,)` or `(steps, samples)`.
        starts: starts of the steps, shaped as `anchors`.
        opened: steps before which the method is opened with weights at their start, ascending.
        held: whether inputs `u` are given as a tensor for each step, rather than one for all.
    """

    times: Tensor
    anchors: Tensor
    starts: Tensor
    opened: tuple[int, ...]
    held: bool

    def weights(self, field: Equation, first: int, last: int, u: Drive) -> Weights:
        """Weights of steps `first` to `last`, as leaves `(steps * nodes, *samples, ...)`."""
        times = self.times[first:last]
        anchors = self.anchors[first:last].unsqueeze(1).expand(times.shape)
        flat, index = times.flatten(0, 1), range(first, last)
        drive = self._drive(u, flat, index, times.shape[1])
        return field.weights(flat, anchors.flatten(0, 1), drive)

    def opening(self, field: Equation, first: int, last: int, u: Drive) -> tuple[tuple[int, ...], Weights]:
        """The steps from `first` to `last` before which the method is opened, and their weights as leaves `(these steps, *samples, ...)`."""
        steps = tuple(step for step in self.opened if first <= step < last)
        if not steps:
            return (), ()
        several = len(steps) > 1
        index = torch.tensor(steps, device=self.starts.device) if several else slice(steps[0], steps[0] + 1)
        times = self.starts[index]
        return steps, field.weights(times, self.anchors[index], self._drive(u, times, steps, 1))

    def _drive(self, u: Drive, times: Tensor, steps: range | tuple[int, ...], nodes: int) -> Tensor | None:
        if u is None:
            return None
        if not isinstance(u, Tensor):
            return u(times)
        if not self.held:
            return u.expand(times.shape[0], *u.shape)
        chosen = u[steps.start : steps.stop] if isinstance(steps, range) else u[list(steps)]
        return chosen if nodes == 1 else chosen.unsqueeze(1).expand(-1, nodes, *u.shape[1:]).flatten(0, 1)


def reads(field: Field, method: Method, schedule: Schedule, x: Tensor, u: Drive) -> Reads:
    """The reads of a walk of `method` along `schedule` from `x`.

    Raises:
        ShapeError: `u` is a tensor of neither one input nor one input a step, or the schedule has another number of samples than `x`.
    """
    if not schedule.shared and (x.ndim < 1 or x.shape[0] != schedule.knots.shape[1]):
        raise ShapeError(f"times for {schedule.knots.shape[1]} samples do not fit a state of shape {tuple(x.shape)}; its first dimension must agree")
    held = isinstance(u, Tensor) and u.ndim == x.ndim + 1
    if isinstance(u, Tensor) and u.ndim != x.ndim and not (held and u.shape[0] == schedule.steps):
        raise ShapeError(
            f"inputs u for a state {tuple(x.shape)} have as many dimensions as it (held for all times) or come one a step, "
            f"({schedule.steps}, *batch, ...); got {tuple(u.shape)}. A function of times is the third choice"
        )
    lower, upper = schedule.knots[:-1].to(x.device), schedule.knots[1:].to(x.device)
    anchors = torch.minimum(lower, upper).detach()
    times = torch.stack([between(lower, upper, node) for node in method.nodes], dim=1)
    return Reads(times=times, anchors=anchors, starts=lower, opened=_opened(field, method, schedule, held), held=held)


def rows(leaves: Weights, nodes: int) -> Rows:
    """One tuple of weights for each node, for every step."""
    cut = zip(*(leaf.unbind(0) for leaf in leaves), strict=True)
    return list(zip(*[iter(cut)] * nodes, strict=True))


def between(lower: Tensor, upper: Tensor, node: float) -> Tensor:
    """The times that lie a part `node` of the way from `lower` to `upper`."""
    # Exact at both ends, so that the end of a step is read at the time at which the next one starts.
    return lower if node == 0 else upper if node == 1 else lower * (1 - node) + upper * node


def _opened(field: Field, method: Method, schedule: Schedule, held: bool) -> tuple[int, ...]:
    """Steps before which what the method carries is no longer that of the weights and inputs."""
    if method.opening == "never" or schedule.steps == 0:
        return ()
    if method.opening == "jump" and held:
        return tuple(range(schedule.steps))
    edges = field.edges() if method.opening == "jump" else ()
    if not edges:
        return (0,)
    knots = schedule.host()
    if knots is None:
        return tuple(range(schedule.steps))
    anchors = [min(pair) for pair in itertools.pairwise(knots)]
    # An edge that two anchors enclose up to rounding counts: opening without need costs one evaluation and changes nothing.
    slack = 1e-6 * (max(knots) - min(knots)) / schedule.steps
    jumps = (
        step for step, pair in enumerate(itertools.pairwise(anchors), 1) if any(min(pair) - slack <= edge <= max(pair) + slack for edge in edges)
    )
    return (0, *jumps)
