"""Walking all intervals at once, with or without their Jacobians."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pararnn.cell import Drive
from pararnn.solver import drive as drives
from pararnn.solver.problem import Problem
from pararnn.structures.base import Structure

# Numbers that the Jacobians of one window may hold, where they are taken for many steps in one call.
WINDOW_NUMBERS = 1 << 22


def ends_and_states(problem: Problem, steps: Drive, entry: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Where each interval leads from `entry` `(rows, count, state)`, and the states of each of its steps, in order.

    `steps` has leaves `(interval, rows, count, ...)`.
    """
    states = []
    state = entry
    for step in drives.unbind(steps, dim=0):
        state = problem.step(state, step)
        states.append(state)
    return state, states


@dataclass
class Sweep:
    """What a walk of all intervals with their Jacobians found, `(rows, count)` intervals.

    `growth` is how much an error at the entry of an interval is to be expected to grow anywhere inside it, each channel apart; at least one.
    """

    state: Tensor
    product: Structure
    growth: Tensor

    @staticmethod
    def of(state: Tensor, first: Structure) -> Sweep:
        """After the first step, which led to `state`."""
        return Sweep(state, first, first.gain().clamp(min=1))

    def advance(self, state: Tensor, jacobian: Structure) -> None:
        """Take one more step, to `state`."""
        self.state = state
        self.product = jacobian.compose(self.product)
        self.growth = torch.maximum(self.growth, self.product.gain())


def sweep(problem: Problem, steps: Drive, entry: Tensor) -> Sweep:
    """Walk each interval from `entry` `(rows, count, state)`, with the product of the step Jacobians on the way."""
    return _by_formula(problem, steps, entry) if problem.analytic is not None else _by_windows(problem, steps, entry)


def _by_formula(problem: Problem, steps: Drive, entry: Tensor) -> Sweep:
    each = drives.unbind(steps, dim=0)
    found = Sweep.of(*problem.linearize(entry, next(each)))
    for step in each:
        found.advance(*problem.linearize(found.state, step))
    return found


def _by_windows(problem: Problem, steps: Drive, entry: Tensor) -> Sweep:
    """Jacobians by `torch.func` for a window of steps in one call, because each such call costs as much as many steps."""
    interval = next(leaf.shape[0] for leaf in drives.leaves(steps) if drives.is_timed(leaf))
    numbers = entry[..., :1].numel() * problem.structure.cost(problem.state_size)[1]
    size = max(1, min(interval, WINDOW_NUMBERS // max(1, numbers)))
    (state, first), *rest = _window(problem, steps, slice(0, size), entry)
    found = Sweep.of(state, first)
    for state, jacobian in rest:
        found.advance(state, jacobian)
    for start in range(size, interval, size):
        for state, jacobian in _window(problem, steps, slice(start, start + size), found.state):
            found.advance(state, jacobian)
    return found


def _window(problem: Problem, steps: Drive, window: slice, state: Tensor) -> list[tuple[Tensor, Structure]]:
    """The states that the steps of a window lead to, and the Jacobian of each step."""
    part = drives.map_timed(lambda leaf: leaf[window], steps)
    states = [state]
    for step in drives.unbind(part, dim=0):
        states.append(problem.step(states[-1], step))
    jacobians = problem.linearize(torch.stack(states[:-1]), part)[1]
    each = (problem.structure.from_leaves(*leaves) for leaves in zip(*(leaf.unbind(0) for leaf in jacobians.leaves()), strict=True))
    return list(zip(states[1:], each, strict=True))
