"""The gain at which an exponent meets a target: one step of a local model, or a search that assumes neither a slope nor that there is such a gain.

Near a gain of 1 (recurrent weights over their norm) the exponent is about `a + b log g`. All is done in `log g`; every gain tried stays in the range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["unit", "two", "secant", "bisect"]

LEAST_SLOPE = 0.01
"""`b` of the local model below which it says nothing; in a linear network it is 1."""
GROWTH, MOST_STEP = 1.4, 0.7
"""How the steps of the scan for a bracket grow, and the longest of them, in log g."""
MOST_TRIALS, PEAK_TRIALS = 120, 12
NARROWEST = 1e-9
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Trial:
    """One gain that was tried, and the exponent there; inf where the states left the numbers."""

    gain: float
    exponent: float


@dataclass
class Search:
    """All trials so far of `exponent_at(gain)`, and the range of gains."""

    exponent_at: Callable[[float], float]
    target: float
    tolerance: float
    low: float
    high: float
    trials: list[Trial] = field(default_factory=list)

    def at(self, place: float) -> Trial:
        """The trial at `log g = place`; a gain is tried once."""
        gain = math.exp(place)
        for trial in self.trials:
            if trial.gain == gain:
                return trial
        value = self.exponent_at(gain)
        self.trials.append(Trial(gain, math.inf if math.isnan(value) else value))
        return self.trials[-1]

    def miss(self, place: float) -> float:
        """How far above the target the exponent is at `log g = place`."""
        return self.at(place).exponent - self.target

    @property
    def closest(self) -> Trial:
        """The trial nearest to the target, of equally near ones the first."""
        return min(self.trials, key=lambda trial: abs(trial.exponent - self.target))

    @property
    def largest(self) -> Trial:
        """The trial of the largest exponent that is a number."""
        return max((trial for trial in self.trials if trial.exponent < math.inf), key=lambda trial: trial.exponent, default=self.trials[0])

    def met(self, trial: Trial) -> bool:
        """Whether `trial` is within the tolerance."""
        return abs(trial.exponent - self.target) <= self.tolerance


@dataclass(frozen=True)
class Found:
    """The gain that was settled on, how, and why."""

    trial: Trial
    mode: Mode
    rootless: bool
    why: str


def solve(search: Search, mode: Mode, probe: float) -> Found:
    """The gain for `search.target`, by `mode` or, where its model does not hold, by bisection."""
    first = search.miss(0.0)
    if mode == "unit":
        slope, model = 1.0, "with a slope of 1 assumed"
    elif mode == "bisect":
        return _bracketed(search, "bisect", probe, "")
    else:
        second = search.miss(math.log(probe))
        slope = (second - first) / math.log(probe)
        model = f"with the slope {slope:.3g} between gains 1 and {probe:g}"
        if second > 0:
            model += " (the probe is already above the target)"
    if not math.isfinite(slope) or not math.isfinite(first):
        return _bracketed(search, "bisect", probe, "the exponent at the first gains is infinite, so there is no local model; bisected instead. ")
    if slope < LEAST_SLOPE:
        return _bracketed(search, "bisect", probe, f"the exponent hardly rises with the gain (slope {slope:.3g}); bisected instead. ")
    place = -first / slope
    if mode == "secant":
        return _bracketed(search, "secant", probe, "", start=place)
    if not search.low <= place <= search.high:
        return _bracketed(search, "bisect", probe, f"the local model {model} points to log g = {place:.3g}, out of range; bisected instead. ")
    trial = search.at(place)
    if not math.isfinite(trial.exponent):
        return _bracketed(
            search, "bisect", probe, f"the local model {model} points to gain {trial.gain:.4g}, of no finite exponent; bisected instead. "
        )
    return Found(trial, mode, False, f"one step of the local model {model}; it is not iterated (secant and bisect are)")


def _bracketed(search: Search, mode: Mode, probe: float, why: str, start: float | None = None) -> Found:
    places = sorted(
        {0.0, min(max(math.log(probe), search.low), search.high), *(() if start is None else (min(max(start, search.low), search.high),))}
    )
    misses = [search.miss(place) for place in places]
    if search.met(search.closest):
        return Found(search.closest, mode, False, why + "one of the first gains is within the tolerance")
    jumps = []
    for bracket in _brackets(search, places, misses):
        trial = _close_in(search, mode, bracket)
        if search.met(trial):
            return Found(trial, mode, False, why + f"within the tolerance after {len(search.trials)} gains")
        jumps.append(trial)
    if search.met(search.closest):
        return Found(search.closest, mode, False, why + f"within the tolerance after {len(search.trials)} gains, with no gain that meets the target")
    if jumps:
        # A jump down to -inf is where all units saturate or die: a network that is merely off the target learns, that one does not.
        finite = [trial for trial in (*jumps, search.closest) if math.isfinite(trial.exponent)]
        spot = finite[0] if finite else jumps[0]
        rest = (
            "the gain is the one just below" if spot in jumps else f"below it is -inf, so the gain is that of the exponent nearest, {spot.gain:.6g}"
        )
        return Found(spot, mode, False, why + f"the exponent jumps over the target near gain {jumps[0].gain:.6g}; {rest}")
    below = search.largest.exponent < search.target
    spot, which = (search.largest, "largest exponent") if below else (search.closest, "exponent nearest to it")
    ends = f"between gains {math.exp(search.low):g} and {math.exp(search.high):g}"
    side = "below" if below else "above"
    return Found(spot, mode, True, why + f"the exponent stays {side} the target {search.target:g} {ends}; the gain is that of the {which}")


def _brackets(search: Search, places: list[float], misses: list[float]) -> Iterator[tuple[float, float]]:
    """Places on both sides of the target, nearest to the first gains first; none after a trial that is within the tolerance."""
    for (left, before), (right, after) in pairwise(zip(places, misses, strict=True)):
        if (before < 0) != (after < 0):
            yield left, right
    yield from _scan(search, places[0], places[-1], misses[0] < 0)
    if not search.met(search.closest):
        peak = _around_peak(search)
        if peak is not None:
            yield peak


def _scan(search: Search, left: float, right: float, below: bool) -> Iterator[tuple[float, float]]:
    """Neighbouring places with a change of sign, outwards from both ends in turn, first to where a rising exponent would meet the target.

    Ends at a trial that is within the tolerance.
    """
    step = 0.2
    directions = (1, -1) if below else (-1, 1)
    ends = {1: right, -1: left}
    while left > search.low or right < search.high:
        for direction in directions:
            here = ends[direction]
            there = min(max(here + direction * step, search.low), search.high)
            if there == here:
                continue
            if search.met(search.at(there)):
                return
            if (search.miss(here) < 0) != (search.miss(there) < 0):
                yield min(here, there), max(here, there)
            ends[direction] = there
        left, right = ends[-1], ends[1]
        step = min(step * GROWTH, MOST_STEP)


def _around_peak(search: Search) -> tuple[float, float] | None:
    """A bracket between a peak that the scan stepped over and the trial before it, if the exponent meets the target there."""
    places = sorted(math.log(trial.gain) for trial in search.trials)
    spot = places.index(math.log(search.largest.gain))
    if search.largest.exponent > search.target or not math.isfinite(search.largest.exponent):
        return None
    left, right = places[max(spot - 1, 0)], places[min(spot + 1, len(places) - 1)]
    outside = left
    for _ in range(PEAK_TRIALS // 2):
        one, two = right - GOLDEN * (right - left), left + GOLDEN * (right - left)
        for place in (one, two):
            if search.miss(place) >= 0:
                return outside, place
        if search.miss(one) >= search.miss(two):
            right = two
        else:
            left = one
    return None


def _close_in(search: Search, mode: Mode, bracket: tuple[float, float]) -> Trial:
    """Narrow `bracket`, whose ends lie on both sides of the target: by halves, or by the secant while that halves it faster.

    The trial is within the tolerance or, where the exponent jumps over the target, the one just below it.
    """
    left, right = bracket
    at_left, at_right = search.miss(left), search.miss(right)
    for turn in range(MOST_TRIALS):
        if right - left < NARROWEST:
            break
        place = left + (right - left) / 2
        # Every third step halves, because a secant may creep up from one side.
        if mode == "secant" and turn % 3 < 2 and math.isfinite(at_left) and math.isfinite(at_right):
            place = left - at_left * (right - left) / (at_right - at_left)
            place = min(max(place, left + 1e-3 * (right - left)), right - 1e-3 * (right - left))
        miss = search.miss(place)
        if abs(miss) <= search.tolerance:
            return search.at(place)
        if (miss < 0) == (at_left < 0):
            left, at_left = place, miss
        else:
            right, at_right = place, miss
    return search.at(left if at_left < 0 else right)
