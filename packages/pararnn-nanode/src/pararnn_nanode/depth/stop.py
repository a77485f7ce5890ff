"""When an iteration over depth has arrived: what is left is within the tolerance, and corrections have shown how they shrink.

A single small correction proves nothing. Where the equation makes errors large, a correction far below the tolerance is the first of many that grow;
where states ran far away, one enormous correction followed by a modest one only looks like fast convergence. So a sample counts as settled when

- the states answer every step exactly, or
- two ratios of consecutive corrections agree that the error left is within the tolerance, and the correction itself is small, or
- the walk of large steps was close already, and the first Newton correction shrank steeply, with room to spare, or
- corrections are down to rounding and no longer grow.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pararnn.solver.config import DEFAULT_TOLERANCES
from pararnn.structures import Structure
from pararnn_nanode.depth.samples import largest, part

# Corrections that shrink less than this ask for more blocks.
SHRINK = 0.5
# Corrections of this many times the rounding of a state are rounding, unless they more than double; those that stay below a part of the tolerance
# count for as much.
ROUNDING, DOUBLE, STILL = 8, 2.0, 0.1
# A guess right to this, a correction that shrank to this part of the first, and what it may leave of the tolerance.
CLOSE, STEEP, ROOM = 1e-2, 0.1, 0.3


@dataclass(frozen=True, kw_only=True, eq=False)
class Progress:
    """The last correction of each sample, in tolerances, and how it compares to the one before; None before there are any."""

    ratio: Tensor | None = None
    shrink: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Stop:
    """The rule.

    Attributes:
        atol, rtol: error to allow, `atol * min(1, size of the sample) + rtol * |state|`.
        structure: what the field couples.
        steep: whether two corrections may be enough.
    """

    atol: float
    rtol: float
    structure: type[Structure] | None
    steep: bool

    @classmethod
    def of(cls, dtype: torch.dtype, structure: type[Structure] | None, *, steep: bool, tolerance: float | None) -> Stop:
        """The rule for states of `dtype`; `tolerance` stands for both tolerances, which are by default those of pararnn's solver."""
        atol, rtol = DEFAULT_TOLERANCES[dtype.to_real()] if tolerance is None else (tolerance, tolerance)
        return cls(atol=atol, rtol=rtol, structure=structure, steep=steep)

    def judge(self, progress: Progress, update: Tensor, states: Tensor) -> tuple[Progress, Tensor]:
        """What is known after `update` led to `states`, both `(steps, *state)`; and the largest update, whether any sample is open, and any slow."""
        size, magnitude = update.abs(), states.abs()
        own = magnitude.amax() if self.structure is None else largest(magnitude, self.structure)
        # Small samples are held to their own size; a state at rest in zero needs no correction, and gets no division by zero.
        allowed = torch.add((self.atol * own.clamp(max=1)).clamp(min=torch.finfo(own.dtype).tiny), magnitude, alpha=self.rtol)
        ratio = largest(size / allowed, self.structure)
        settled = ratio == 0
        slow = torch.zeros_like(settled)
        shrink = None
        if progress.ratio is not None:
            shrink = part(ratio, progress.ratio)
            settled = settled | self._settled(ratio, shrink, progress.ratio, progress.shrink)
            slow = ~settled & (shrink > SHRINK) & ((ratio > STILL) | (shrink > DOUBLE))
        settled = settled & own.isfinite()
        verdict = torch.stack((size.amax(), (~settled).any(), slow.any()))
        return Progress(ratio=ratio, shrink=shrink), verdict

    def _settled(self, ratio: Tensor, shrink: Tensor, before: Tensor, shrunk: Tensor | None) -> Tensor:
        near = self.rtol**-0.5
        rounding = min(1.0, ROUNDING * torch.finfo(ratio.dtype).eps / self.atol)
        settled: Tensor = (ratio <= rounding) & (shrink <= DOUBLE) & (before <= near)
        if shrunk is None:
            steep: Tensor = (shrink < STEEP) & (before <= CLOSE / self.rtol) & (ratio * shrink <= ROOM)
            return settled | steep if self.steep else settled
        worst = torch.maximum(shrink, shrunk)
        agreed = (worst < SHRINK) & (ratio * worst <= 1 - worst) & (ratio <= near)
        settled |= agreed | ((worst <= DOUBLE) & (ratio <= STILL))
        return settled


@dataclass(frozen=True, kw_only=True)
class LinearStop:
    """The rule for costates, which answer linear equations and are wanted to rounding.

    Attributes:
        structure: what the field couples.
    """

    structure: type[Structure] | None

    def judge(self, progress: Progress, update: Tensor, costate: Tensor) -> tuple[Progress, Tensor]:
        """What is known after `update` led to `costate`, both `(steps, *state)`; and the largest update, the largest costate, whether any is open."""
        size, eps = update.abs(), torch.finfo(update.dtype.to_real()).eps
        own = largest(costate.abs(), self.structure)
        whole = own.amax()
        top = largest(size, self.structure)
        ratio = part(top, own)
        settled = ratio == 0
        shrink = None
        if progress.ratio is not None:
            shrink = part(ratio, progress.ratio)
            # Twice at rounding is enough: there a correction is as likely to grow as to shrink, and of many samples some always does.
            settled = settled | (ratio <= 4 * eps) & ((shrink <= DOUBLE) | (progress.ratio <= 4 * eps))
        if shrink is not None and progress.shrink is not None:
            worst = torch.maximum(shrink, progress.shrink)
            # Rounding goes from one row to another where nobody said that rows are apart.
            rounding = 1e3 * eps * (part(whole, own) if self.structure is None else 1.0)
            resting = (torch.minimum(shrink, progress.shrink) > 0.8) & (worst < 1.25) & (ratio <= rounding)
            settled = settled | (worst < SHRINK) & (ratio * worst <= 4 * eps * (1 - worst)) | resting
        return Progress(ratio=ratio, shrink=shrink), torch.stack((top.amax(), whole, (~settled).any()))
