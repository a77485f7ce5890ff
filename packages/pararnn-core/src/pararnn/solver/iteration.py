"""Newton's method for the entry states of the intervals of one partition, each sequence minding its own progress."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.scans.op import constant_scan
from pararnn.solver import drive as drives
from pararnn.solver.config import NewtonConfig
from pararnn.solver.lanes import any_true, largest, smallest
from pararnn.solver.partition import Partition
from pararnn.solver.problem import Problem
from pararnn.solver.sweep import ends_and_products, ends_and_states
from pararnn.structures.base import Structure

# An update below the root of its tolerance, times this, is taken to be in reach of one correction with the Jacobians at hand.
REACH = 10.0
# A sweep that does not at least halve a sequence's update is a strike against it; at the second in a row it is handed on.
SHRINK, STRIKES = 0.5, 2
LIMIT = 64


class Iteration:
    """Entry states that are corrected until each sequence is solved or has stalled.

    A sequence is *active* while it needs Jacobians, *near* when the states are worth writing, *solved* when the update measured on the
    written states is below the tolerance. Entries of near and solved sequences wait unchanged for the others, so that nobody's result depends on
    who else is in the batch.
    """

    products: Structure
    """The product of the step Jacobians of each interval, as of the last sweep in which its sequence was active."""

    def __init__(self, problem: Problem, partition: Partition, config: NewtonConfig, *, patience: int) -> None:
        self.problem, self.partition, self.config = problem, partition, config
        self.segments = problem.initial.shape[1]
        self.atol, self.rtol = config.tolerances(problem.initial.dtype)
        self.steps = partition.cut(problem.drive)
        self.entry = self._first_guess()
        flags = torch.zeros_like(problem.initial[..., 0].abs())
        # Sequences without a step have nothing to be solved.
        self.solved = partition.largest(torch.ones_like(self.entry[..., 0].abs()), self.segments) == 0
        self.active = ~self.solved
        self.strikes = flags
        self.best = torch.full_like(flags, torch.inf)
        self.ratio = torch.full_like(self.entry[..., 0].abs(), torch.inf)
        self.exact = torch.zeros_like(self.ratio, dtype=torch.bool)
        self.updates: list[float] = []
        self.limit = config.max_iters or min(patience, LIMIT)
        self.budget = config.max_iters or config.budget(problem.length) or problem.budget or LIMIT

    def run(self) -> Tensor:
        """Iterate, and return the states `(rows, time, state)` of all sequences; `solved` tells which of them to trust."""
        while True:
            while len(self.updates) < self.limit and any_true(self.active):
                self._sweep()
            self.active = torch.zeros_like(self.active)
            states = self._write()
            if not any_true(self.active) or len(self.updates) >= self.limit:
                return self.partition.join(states)

    def exact_prefix(self) -> int:
        """How many leading intervals are exact to the bit in every sequence that is not solved: their entries called for no update at all."""
        exact = self.exact.to(torch.int64).cumprod(1).sum(1, keepdim=True)
        return int(smallest(torch.where(self.solved, self.partition.count, exact)))

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
        ends, products = ends_and_products(self.problem, self.steps, self.entry)
        moving = self.partition.spread(self.active)
        self.products = _choose(moving, products, self.products) if self.updates else products
        corrected, update, near = self._correct(ends)
        ratio = self.partition.largest(self.ratio, self.segments)
        self.entry = torch.where(moving.unsqueeze(-1), corrected, self.entry)
        self.updates.append(largest(torch.where(moving.unsqueeze(-1), update, 0).abs()))
        # Sequences that wait unchanged are measured again and again; only a measure that follows a correction tells of progress.
        shrank = ratio <= SHRINK * self.best
        self.strikes = torch.where(self.active, torch.where(shrank, 0, self.strikes + 1), self.strikes)
        self.best = torch.where(self.active, torch.minimum(self.best, ratio), self.best)
        patience = STRIKES if len(self.updates) < self.budget else 1
        self.active = self.active & ~near & (self.strikes < patience)

    def _write(self) -> list[Tensor]:
        """Walk all intervals writing the states, and judge each sequence by the update that they still call for."""
        ends, states = ends_and_states(self.problem, self.steps, self.entry)
        corrected, _, near = self._correct(ends)
        ratio = self.partition.largest(self.ratio, self.segments)
        self.solved = self.solved | (ratio <= 1)
        # A near sequence that missed goes on, with fresh Jacobians, as long as it gets nearer.
        self.active = ~self.solved & near & (ratio <= SHRINK * self.best)
        self.best = torch.minimum(self.best, ratio)
        self.entry = torch.where(self.partition.spread(self.active).unsqueeze(-1), corrected, self.entry)
        return states

    def _correct(self, ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Corrected entries, the update that leads there, and which sequences are near; sets `ratio`, the update in tolerances."""
        partition, problem = self.partition, self.problem
        target = partition.shift(ends, problem.initial)
        mismatch = target - self.entry
        # Where an interval ran into infinity there is nothing to learn; a zero Jacobian moves the next entry to where this one ends.
        finite = mismatch.isfinite()
        carried = self.products.map(lambda leaf: partition.shift(leaf.nan_to_num(0.0, 0.0, 0.0), None))
        residual = torch.where(finite, mismatch, 0)
        update = constant_scan(carried, residual, None, partition.offsets, backend=self.config.scan_backend)
        # Not `entry + update`: where the entry before is right, this is the target to the bit.
        corrected = target + (update - residual)
        corrected = torch.where(corrected.isfinite(), corrected, torch.where(finite, target, self.entry))
        size = self.atol + self.rtol * target.abs()
        ratio = torch.where(finite & update.isfinite(), update.abs() / size, torch.inf)
        self.ratio = ratio.amax(-1)
        self.exact = (finite & (update == 0)).all(-1)
        near = partition.largest((update.abs() / (REACH * size.sqrt())).amax(-1), self.segments) <= 1
        return self._project(corrected), update, near & partition.largest(self.ratio, self.segments).isfinite()

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
