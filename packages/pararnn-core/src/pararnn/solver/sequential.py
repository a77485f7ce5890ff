"""The walk: one step after the other, at linear cost. What every parallel answer is held to."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.cell import Drive
from pararnn.scans.segments import by_length
from pararnn.solver import drive as drives
from pararnn.solver.problem import Problem


def walk(problem: Problem) -> Tensor:
    """States `(rows, time, state)`, differentiated by autograd through every step."""
    if problem.length == 0 or problem.rows == 0:
        # Nothing to walk; the step makes nothing of nothing, on the graph, so that a loss over it has gradients of zero.
        return problem.step(problem.initial.new_zeros(problem.rows, problem.length, problem.state_size), problem.drive)
    if problem.offsets is None:
        return torch.stack(_walk(problem, problem.drive, problem.initial[:, 0]), dim=1)
    pieces, places = [], []
    for group in by_length(problem.offsets, device=problem.initial.device):
        drive = drives.map_timed(lambda leaf, at=group.positions: leaf[:, at].movedim(2, 1), problem.drive)  # type: ignore[misc]
        states = torch.stack(_walk(problem, drive, problem.initial[:, group.segments]), dim=2)
        pieces.append(states[:, group.inside])
        places.append(group.positions[group.inside])
    states = torch.cat(pieces, dim=1)
    return torch.zeros_like(states).index_copy(1, torch.cat(places), states)


def _walk(problem: Problem, drive: Drive, state: Tensor) -> list[Tensor]:
    states = []
    # `unbind` makes one view a step and one gradient for all of them; indexing would write a full-size gradient a step.
    for step in drives.unbind(drive, dim=1):
        state = problem.step(state, step)
        states.append(state)
    return states
