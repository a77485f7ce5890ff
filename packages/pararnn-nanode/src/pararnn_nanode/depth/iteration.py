"""The iteration over depth: evaluate all steps at once, correct all states, until the correction vanishes.

It starts from a walk of few large midpoint steps with a cubic between them. An answer counts when the error that is left is below the tolerance:
the last correction times how much corrections shrink, never the residual of the steps alone, which a long way makes into a large error. Every sample
is judged by itself, against its own size: a correction that is small but grows tells of an error that the equation makes large.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pararnn_nanode.depth.blocks import Blockwise, Correction, Cut, Summed
from pararnn_nanode.depth.jacobian import linearize
from pararnn_nanode.depth.planner import Way
from pararnn_nanode.depth.stages import Stages, leap
from pararnn_nanode.depth.stop import Progress, Stop

# A solve that needs more iterations than this with the blocks it has asks for more of them.
PATIENCE = 10
# Picard's iteration first grows, with the length of the way times the norm of the weights, before it shrinks faster and faster.
PICARD_PATIENCE = 100
FINER = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Trajectory:
    """What an iteration found.

    Attributes:
        states: `(steps + 1, *state)`, the first of them given; constants.
        correction: the last linear map that was used; the gradient uses its adjoint.
        converged: whether the states are the sequential ones to within the tolerance.
        updates: largest correction of each iteration.
        evaluations: evaluations of the field, each step of each iteration counted.
        blocks: blocks of the last iteration, 1 for Picard's.
        alike: whether the field gives for one step alone what it gives for all at once.
    """

    states: Tensor
    correction: Correction
    converged: bool
    updates: tuple[float, ...]
    evaluations: int
    blocks: int
    alike: bool = True


def iterate(stages: Stages, x: Tensor, *, way: Way, blocks: int, tolerance: float | None = None) -> Trajectory:
    """The states after all steps from `x`; nothing here is on the graph.

    Args:
        blocks: how many blocks to begin with.
        tolerance: error to allow, relative to `min(1, size of the sample) + |state|`; by default that of pararnn's solver for the dtype.
    """
    stop = Stop.of(x.dtype, stages.field.structure, steep=way == "newton", tolerance=tolerance)
    updates: list[float] = []
    evaluations = 0
    cut = Cut.into(stages.steps, blocks)
    states, widths, parts = _guess(stages, x, cut)
    evaluations += 2 * cut.count
    while True:
        correction: Correction = Summed() if way == "picard" else _correction(stages, states, cut, widths, parts)
        progress = Progress()
        settled, finite, alike = False, True, True
        for _ in range(PICARD_PATIENCE if way == "picard" else PATIENCE):
            increment = stages.increment(states[:-1])
            evaluations += stages.steps * stages.method.evaluations
            update = correction.apply((states[:-1] - states[1:]).add_(increment))
            states[1:] += update
            progress, verdict = stop.judge(progress, update, states[1:])
            # One look at the numbers an iteration.
            size, open_, slow = verdict.tolist()
            updates.append(size)
            settled, finite = open_ == 0, size < torch.inf
            if settled and stages.field.structure is None:
                alike = _alike(stages, states, update, increment)
            if settled or not finite or (way == "newton" and slow):
                break
        if settled or way == "picard" or cut.length <= FINER:
            facts = {"updates": tuple(updates), "evaluations": evaluations, "blocks": cut.count if way == "newton" else 1}
            return Trajectory(states=states, correction=correction, converged=settled and alike, alike=alike, **facts)  # type: ignore[arg-type]
        cut = Cut.into(stages.steps, cut.count * FINER)
        fresh, widths, parts = _guess(stages, x, cut)
        evaluations += 2 * cut.count
        # A solve that came closer than a walk of large steps can is not thrown away.
        states = states if finite and updates[-1] < updates[0] else fresh


def _alike(stages: Stages, states: Tensor, update: Tensor, increment: Tensor) -> bool:
    """Whether the field gave for all steps at once what it gives for the first and the last alone."""
    last = states[-2] - update[-2] if stages.steps > 1 else states[0]
    return stages.alike(torch.stack((states[0], last)), torch.stack((increment[0], increment[-1])))


def _guess(stages: Stages, x: Tensor, cut: Cut) -> tuple[Tensor, Tensor, Tensor]:
    """States `(steps + 1, *state)` from a walk over blocks, the lengths of blocks, and which part of its block lies before the end of each step."""
    device = stages.sizes.device
    widths = stages.leaps(torch.tensor(cut.bounds, device=device))
    starts, middles = (stages.at(torch.tensor(steps, device=device)) for steps in (cut.bounds[:-1], cut.middles))
    knots, slopes = leap(stages, x, starts, middles, widths)
    # The slope at the very end is not known; the one that continues those before will do for a guess.
    last = 2 * slopes[-1:] - slopes[-2:-1] if cut.count > 1 else slopes
    moves, ends = (slope.mul(widths).unsqueeze(1) for slope in (slopes, torch.cat((slopes[1:], last))))
    begin, change = knots[:-1].unsqueeze(1), knots.diff(dim=0).unsqueeze(1)
    # By the way made, not by the time that passed: where time turns round within a block, the latter may sum up to next to nothing.
    passed = cut.split(stages.sizes.abs()).cumsum(1)
    part = passed / passed[:, -1:].clamp(min=torch.finfo(passed.dtype).tiny)
    rest = 1 - part
    # The cubic with these ends and slopes.
    bend = (moves - change) * rest - (ends - change) * part
    inside = begin + part * (change + rest * bend)
    return torch.cat((x.unsqueeze(0), cut.join(inside))), widths, part


def _correction(stages: Stages, states: Tensor, cut: Cut, widths: Tensor, parts: Tensor) -> Blockwise:
    middles = torch.tensor(cut.middles, device=states.device)
    slope = linearize(stages.field, states[middles], stages.at(middles))[1]
    state_dims = states.ndim - 1

    def scaled(leaf: Tensor) -> Tensor:
        return leaf * widths.reshape(widths.shape + (1,) * (leaf.ndim - state_dims - 1))

    return Blockwise.of(cut, slope.map(scaled), parts)
