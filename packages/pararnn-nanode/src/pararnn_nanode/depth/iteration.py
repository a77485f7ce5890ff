"""The iteration over depth: evaluate all steps at once, correct all states, until the correction vanishes.

It starts from a walk of few large midpoint steps with a cubic between them. An answer counts when the error that is left is below the tolerance:
the last correction times how much corrections shrink, never the residual of the steps alone, which a long way makes into a large error.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pararnn.solver.config import DEFAULT_TOLERANCES
from pararnn_nanode.depth.blocks import Blockwise, Correction, Cut, Summed
from pararnn_nanode.depth.jacobian import linearize
from pararnn_nanode.depth.planner import Way
from pararnn_nanode.depth.stages import Stages, leap

# Corrections that shrink less than this ask for more blocks; so does a solve that needs more iterations than this with the blocks it has.
SHRINK, PATIENCE = 0.5, 10
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
    """

    states: Tensor
    correction: Correction
    converged: bool
    updates: tuple[float, ...]
    evaluations: int
    blocks: int


def iterate(stages: Stages, x: Tensor, *, way: Way, blocks: int, tolerance: float | None = None) -> Trajectory:
    """The states after all steps from `x`; nothing here is on the graph.

    Args:
        blocks: how many blocks to begin with.
        tolerance: error to allow, relative to `1 + |state|`; by default that of pararnn's solver for the dtype.
    """
    atol, rtol = DEFAULT_TOLERANCES[x.dtype.to_real()] if tolerance is None else (tolerance, tolerance)
    updates: list[float] = []
    evaluations = 0
    cut = Cut.into(stages.steps, blocks)
    states, widths, parts = _guess(stages, x, cut)
    evaluations += 2 * cut.count
    while True:
        correction: Correction = Summed() if way == "picard" else _correction(stages, states, cut, widths, parts)
        patience = PICARD_PATIENCE if way == "picard" else PATIENCE
        before, settled, finite = torch.inf, False, True
        for _ in range(patience):
            increment = stages.increment(states[:-1])
            evaluations += stages.steps * stages.method.evaluations
            update = correction.apply((states[:-1] - states[1:]).add_(increment))
            states[1:] += update
            size = update.abs()
            # One look at the numbers an iteration: the ratio to the tolerance, and the update itself for the record.
            ratio, largest = torch.stack(((size / (atol + rtol * states[1:].abs())).amax(), size.amax())).tolist()
            updates.append(largest)
            shrink = ratio / before if 0 < before < torch.inf else float(before > 0)
            finite = ratio < torch.inf
            # Nothing is known of how corrections shrink before the second.
            settled = ratio * min(1.0, shrink / (1 - shrink) if shrink < SHRINK else 1.0) <= 1
            if settled or not finite or (way == "newton" and shrink > SHRINK and before < torch.inf):
                break
            before = ratio
        if settled or way == "picard" or cut.length <= FINER:
            facts = {"updates": tuple(updates), "evaluations": evaluations, "blocks": cut.count if way == "newton" else 1}
            return Trajectory(states=states, correction=correction, converged=settled, **facts)  # type: ignore[arg-type]
        cut = Cut.into(stages.steps, cut.count * FINER)
        fresh, widths, parts = _guess(stages, x, cut)
        evaluations += 2 * cut.count
        # A solve that came closer than a walk of large steps can is not thrown away.
        states = states if finite and updates[-1] < updates[0] else fresh


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
    passed, whole = cut.split(stages.sizes).cumsum(1), widths.unsqueeze(1)
    part = torch.where(whole == 0, 0, passed / whole)
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
