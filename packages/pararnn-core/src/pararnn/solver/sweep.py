"""Walking all intervals at once, with or without their Jacobians."""

from __future__ import annotations

import functools

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


def ends_and_products(problem: Problem, steps: Drive, entry: Tensor) -> tuple[Tensor, Structure]:
    """Where each interval leads from `entry` `(rows, count, state)`, and the product of the step Jacobians on the way."""
    return _by_formula(problem, steps, entry) if problem.analytic is not None else _by_windows(problem, steps, entry)


def _by_formula(problem: Problem, steps: Drive, entry: Tensor) -> tuple[Tensor, Structure]:
    each = drives.unbind(steps, dim=0)
    state, product = problem.linearize(entry, next(each))
    for step in each:
        state, jacobian = problem.linearize(state, step)
        product = jacobian.compose(product)
    return state, product


def _by_windows(problem: Problem, steps: Drive, entry: Tensor) -> tuple[Tensor, Structure]:
    """Jacobians by `torch.func` for a window of steps in one call, because each such call costs as much as many steps."""
    interval = next(leaf.shape[0] for leaf in drives.leaves(steps) if drives.is_timed(leaf))
    numbers = entry[..., :1].numel() * problem.structure.cost(problem.state_size)[1]
    size = max(1, min(interval, WINDOW_NUMBERS // max(1, numbers)))
    state, product = _window(problem, steps, slice(0, size), entry)
    for start in range(size, interval, size):
        state, later = _window(problem, steps, slice(start, start + size), state)
        product = later.compose(product)
    return state, product


def _window(problem: Problem, steps: Drive, window: slice, state: Tensor) -> tuple[Tensor, Structure]:
    part = drives.map_timed(lambda leaf: leaf[window], steps)
    before = [state]
    for step in drives.unbind(part, dim=0):
        before.append(problem.step(before[-1], step))
    jacobians = problem.linearize(torch.stack(before[:-1]), part)[1]
    each = (problem.structure.from_leaves(*leaves) for leaves in zip(*(leaf.unbind(0) for leaf in jacobians.leaves()), strict=True))
    return before[-1], functools.reduce(lambda earlier, later: later.compose(earlier), each)
