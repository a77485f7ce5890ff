"""Walking all intervals at once, with or without their Jacobians."""

from __future__ import annotations

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
    product: Structure | None = None
    state = entry
    for step in drives.unbind(steps, dim=0):
        state, jacobian = problem.linearize(state, step)
        product = jacobian if product is None else jacobian.compose(product)
    assert product is not None
    return state, product


def _by_windows(problem: Problem, steps: Drive, entry: Tensor) -> tuple[Tensor, Structure]:
    """Jacobians by `torch.func` for a window of steps in one call, because each such call costs as much as many steps."""
    product: Structure | None = None
    state = entry
    interval = next(leaf.shape[0] for leaf in drives.leaves(steps) if drives.is_timed(leaf))
    window = max(1, min(interval, WINDOW_NUMBERS // max(1, entry[..., :1].numel() * problem.structure.cost(problem.state_size)[1])))
    for start in range(0, interval, window):
        part = drives.map_timed(lambda leaf, start=start: leaf[start : start + window], steps)  # type: ignore[misc]
        before = [state]
        for step in drives.unbind(part, dim=0):
            state = problem.step(state, step)
            before.append(state)
        jacobians = problem.linearize(torch.stack(before[:-1]), part)[1]
        for leaves in zip(*(leaf.unbind(0) for leaf in jacobians.leaves()), strict=True):
            jacobian = problem.structure.from_leaves(*leaves)
            product = jacobian if product is None else jacobian.compose(product)
    assert product is not None
    return state, product
