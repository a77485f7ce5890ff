"""Newton's method for the entry states of the intervals of one partition, each sequence minding its own progress."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.scans.op import constant_scan
from pararnn.solver import drive as drives
from pararnn.solver.config import NewtonConfig
from pararnn.solver.lanes import any_true, largest
from pararnn.solver.partition import Partition
from pararnn.solver.problem import Problem
from pararnn.solver.sweep import ends_and_states, sweep
from pararnn.structures.base import Structure

# An update below the root of its tolerance, times this, is taken to be in reach of one correction with the Jacobians at hand.
REACH = 4.0
# A sweep that does not at least halve a sequence's update is a strike against it; at the second in a row it is handed on.
SHRINK, STRIKES = 0.5, 2
LIMIT = 64
# Rounding that may build up along a sequence, in tolerances, before its parallel states are as good as any but no longer those of the loop.
NOISE = 4.0


class Iteration:
    """Entry states that are corrected until each sequence is solved or has stalled.

    A sequence is *active* while it needs Jacobians, *near* when the states are worth writing, *solved* when the update measured on the
    written states, times the growth of an error inside the interval, is below the tolerance. Entries of near and solved sequences wait unchanged
    for the others, and each sequence counts its own sweeps, so that nobody's result depends on who else is in the batch.
    """

    products: Structure
    """The product of the step Jacobians of each interval, as of the last sweep in which its sequence was active."""

    growth: Tensor
    """How much an error at the entry of each interval grows inside it, `(rows, count)`, as of that sweep."""

    def __init__(self, problem: Problem, partition: Partition, config: NewtonConfig, *, patience: int) -> None:
        self.problem, self.partition, self.config = problem, partition, config
        self.segments = problem.initial.shape[1]
        self.atol, self.rtol = config.tolerances(problem.initial.dtype)
        self.backend = config.scan_backend
        self.steps = partition.cut(problem.drive)
        self.entry = self._first_guess()
        flags = torch.zeros_like(problem.initial[..., 0].abs())
        # Sequences without a step have nothing to be solved.
        self.solved = partition.largest(torch.ones_like(self.entry[..., 0].abs()), self.segments) == 0
        self.active = ~self.solved
        self.strikes = flags
        self.sweeps = flags
        self.best = torch.full_like(flags, torch.inf)
        self.ratio = torch.full_like(self.entry[..., 0].abs(), torch.inf)
        self.updates: list[float] = []
        self.limit = config.max_iters or min(patience, LIMIT)
        self.budget = config.max_iters or config.budget(problem.length) or problem.budget or LIMIT

    def run(self) -> Tensor:
        """Iterate, and return the states `(rows, time, state)` of all sequences; `solved` tells which of them to trust."""
        while True:
            while any_true(self.active):
                self._sweep()
            states = self._write()
            if not any_true(self.active):
                return self.partition.join(states)

    def _first_guess(self) -> Tensor:
        partition, problem = self.partition, self.problem
        last = drives.map_timed(lambda leaf: leaf[-1], self.steps)
        first = partition.spread(problem.initial)
        count = partition.count
        guess = problem.step(first.expand(first.shape[0], count, first.shape[2]), last)
        if problem.guess is not None:
            given: Tensor = partition.cut(problem.guess)[-1]
            guess = torch.where(given.isfinite(), given, guess)
        return self._project(partition.shift(guess, problem.initial))

    def _sweep(self) -> None:
        """Walk all intervals with their Jacobians and correct the entries of the active sequences."""
        found = sweep(self.problem, self.steps, self.entry)
        moving = self.partition.spread(self.active)
        growth = found.growth.amax(-1)
        self.products = _choose(moving, found.product, self.products) if self.updates else found.product
        self.growth = torch.where(moving, growth, self.growth) if self.updates else growth
        self.sweeps = self.sweeps + self.active
        corrected, update, near = self._correct(found.state)
        ratio = self.partition.largest(self.ratio, self.segments)
        self.entry = torch.where(moving.unsqueeze(-1), corrected, self.entry)
        self.updates.append(largest(torch.where(moving.unsqueeze(-1), update, 0).abs()))
        # Sequences that wait unchanged are measured again and again; only a measure that follows a correction tells of progress.
        shrank = ratio <= SHRINK * self.best
        self.strikes = torch.where(self.active, torch.where(shrank, 0, self.strikes + 1), self.strikes)
        self.best = torch.where(self.active, torch.minimum(self.best, ratio), self.best)
        patience = torch.where(self.sweeps < self.budget, STRIKES, 1)
        self.active = self.active & ~near & (self.strikes < patience) & (self.sweeps < self.limit)

    def _write(self) -> list[Tensor]:
        """Walk all intervals writing the states, and judge each sequence by the update that they still call for."""
        ends, states = ends_and_states(self.problem, self.steps, self.entry)
        corrected, _, near = self._correct(ends)
        ratio = self.partition.largest(self.ratio, self.segments)
        # No update is no error, however an error would grow.
        inside = torch.where(self.ratio == 0, 0, self.ratio * self.growth)
        settled = self.partition.largest(inside, self.segments) <= 1
        self.solved = self.solved | settled & (self.partition.largest(self._noise(ends), self.segments) <= NOISE)
        # A near sequence that missed goes on, with fresh Jacobians, as long as it gets nearer.
        self.active = ~self.solved & ~settled & near & (ratio <= SHRINK * self.best) & (self.sweeps < self.limit)
        self.best = torch.minimum(self.best, ratio)
        self.entry = torch.where(self.partition.spread(self.active).unsqueeze(-1), corrected, self.entry)
        return states

    def _correct(self, ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Corrected entries, the update that leads there, and which sequences are near; sets `ratio`, the update in tolerances."""
        partition, problem = self.partition, self.problem
        target = partition.shift(ends, problem.initial)
        mismatch = target - self.entry
        finite = mismatch.isfinite()
        residual = torch.where(finite, mismatch, 0)
        update = constant_scan(self._carried(), residual, None, partition.offsets, backend=self.backend)
        # Not `entry + update`: where the entry before is right, this is the target to the bit.
        corrected = target + (update - residual)
        corrected = torch.where(corrected.isfinite(), corrected, torch.where(finite, target, self.entry))
        size = self.atol + self.rtol * target.abs()
        ratio = torch.where(finite & update.isfinite(), update.abs() / size, torch.inf)
        self.ratio = ratio.amax(-1)
        near = partition.largest((update.abs() / (REACH * size.sqrt())).amax(-1), self.segments) <= 1
        return self._project(corrected), update, near & partition.largest(self.ratio, self.segments).isfinite()

    def _noise(self, ends: Tensor) -> Tensor:
        """The rounding errors that the states of each interval are expected to have gathered, in tolerances, `(rows, count)`.

        Torch rounds by the shape of a tensor, so the loop rounds otherwise than a walk of many intervals. Where errors grow along the sequence the
        two part, both being right. A sample of such errors, one at the end of each interval, is carried on by the very maps that carry corrections.
        """
        size = ends.abs().nan_to_num(0.0, 0.0, 0.0).amax(-1)
        index = torch.arange(ends.shape[1] * ends.shape[2], device=ends.device).reshape(1, *ends.shape[1:])
        # Spread over [-1, 1] without a pattern, and the same each time: fractional parts of multiples of the golden ratio.
        sample = (index * 0.6180339887498949).frac().to(size.dtype).mul(2).sub(1)
        made = sample * (torch.finfo(size.dtype).eps * size).unsqueeze(-1)
        carried = constant_scan(self._carried(), self.partition.shift(made.to(ends.dtype), None), None, self.partition.offsets, backend=self.backend)
        return (carried.abs() + made.abs()).amax(-1) * self.growth / (self.atol + self.rtol * size)

    def _carried(self) -> Structure:
        """The map from a correction of each entry to one of the next: the product of the interval before, zero where a sequence begins."""
        # Where an interval ran into infinity there is nothing to learn; a zero Jacobian moves the next entry to where this one ends.
        return self.products.map(lambda leaf: self.partition.shift(leaf.nan_to_num(0.0, 0.0, 0.0), None))

    def _project(self, entry: Tensor) -> Tensor:
        if self.problem.bounds is None or not self.config.project:
            return entry
        low, high = self.problem.bounds
        # A sequence that starts outside the bounds may stay between its start and them.
        first = self.partition.spread(self.problem.initial)
        return entry.clamp(first.clamp(max=low), first.clamp(min=high))


def _choose(flags: Tensor, new: Structure, old: Structure) -> Structure:
    """Maps of `new` where `flags` `(rows, count)` is set, else of `old`."""

    def pick(ours: Tensor, theirs: Tensor) -> Tensor:
        return torch.where(flags.reshape(flags.shape + (1,) * (ours.ndim - flags.ndim)), ours, theirs)

    return type(new).from_leaves(*map(pick, new.leaves(), old.leaves()))
