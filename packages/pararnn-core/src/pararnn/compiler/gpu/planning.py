"""How a solve is launched on a GPU, and why: from sizes alone, by a cost model in numbers.

The walk takes a time for each step that only its arithmetic decides, and memory is its limit where channels are many. The other ways go through the
sequence a few times, so that memory limits them earlier, but through all intervals at once. The numbers were measured on an H200.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pararnn.compiler.engine import Workload
from pararnn.compiler.gpu.launches import CHECKED, MEETING, Launch, ahead_of, power_of_two
from pararnn.compiler.gpu.parts import instructions, is_crowded
from pararnn.compiler.program import Kind, Program
from pararnn.solver.planner import FORCED_PATIENCE, SHORT, Plan, compared

# Seconds of a step of the walk however short, of each instruction in it, and of a launch.
STEP, INSTRUCTION, LAUNCH = 30e-9, 1.5e-9, 1.6e-6
# How much longer a step takes where a program takes it for many intervals, in `shoot` and in `across`.
TILED, SHARED = 4.2, 5.6
# The share of a sweep of `across` that a later one takes which reads a kept number, and steps after which one has met the sweep before.
LATER, MET = 0.85, 128
# Bytes in a second: of the walk, of `across`, and of `shoot` by the channels of its rows.
STREAM, ACROSS, ROWS = 3.1e12, 3.85e12, {32: 3.3e12, 16: 2.9e12}
NARROW_ROWS = 2.1e12
# Seconds that a window of `shoot`, a pass of `across`, and a correction in a launch of its own take besides, and each interval in the last.
WINDOW, PASS, CORRECTION, ENTRY = 6e-6, 7e-6, 3.7e-6, 1.2e-9
# Steps of an interval whose reading goes to waste at its ends.
WASTED = 4
PROCESSORS = 132
# Programs that are enough for the card.
ENOUGH = 96
# Programs of `across` below which they are made smaller, so that there are more of them.
FULL = 3 * PROCESSORS
# Shorter intervals take more sweeps than they save.
SHORTEST = 8
PATIENCE = 16


@dataclass(frozen=True)
class Costs:
    """Estimated seconds of the ways to solve one program at one size."""

    work: Workload
    bytes: float
    step: float
    sweeps: int

    @staticmethod
    def of(program: Program, work: Workload) -> Costs:
        """From what the program reads and computes at each step."""
        carry = max(4, work.itemsize)
        wide = carry / 4
        read = sum(work.itemsize * (1 if kind is Kind.ELEMENT else 1 / work.state) for kind in program.kinds if kind.is_timed)
        return Costs(work, read + work.itemsize, (STEP + INSTRUCTION * instructions(program.value)) * wide, 2 if carry == 4 else 3)

    @property
    def elements(self) -> int:
        """States in all."""
        return self.work.rows * self.work.length * self.work.state

    def walk(self) -> float:
        """One pass, step by step."""
        return LAUNCH + max(self.work.longest * self.step, self.elements * self.bytes / STREAM)

    def parallel(self, launch: Launch) -> float:
        """The sweeps that are expected, and the pass that writes."""
        return self.shoot(launch) if launch.variant == "shoot" else self.across(launch)

    def shoot(self, launch: Launch) -> float:
        """Windows one after the other."""
        passes = self.sweeps + 1
        programs = self.work.sequences * math.ceil(self.work.state / launch.block_state)
        turns = math.ceil(programs / (2 * PROCESSORS))
        windows = math.ceil(self.work.longest / (launch.interval * launch.count))
        rate = ROWS.get(launch.block_state, NARROW_ROWS) * min(1.0, programs / PROCESSORS)
        working = max(turns * windows * passes * launch.interval * self.step * TILED, passes * self.elements * self.bytes / rate)
        return LAUNCH + turns * windows * WINDOW + working

    def across(self, launch: Launch) -> float:
        """Launches one after the other."""
        passes = self.sweeps + 1
        intervals = math.ceil(self.work.longest / launch.interval)
        traffic = self.elements * self.bytes / ACROSS * (1 + WASTED / launch.interval)
        once = max(launch.interval * self.step * SHARED, traffic)
        if launch.interval >= MEETING:
            shares = 1 + (self.sweeps - 1) * min(1.0, MET / launch.interval) + CHECKED / launch.interval
        else:
            shares = 1 + self.sweeps * LATER
        return shares * once + passes * (PASS + CORRECTION + ENTRY * intervals) + LAUNCH * (2 * launch.sweeps + 3 - 2 * passes)


def launch_for(program: Program, work: Workload, interval: int, *, packed: bool) -> Launch:
    """The launch for intervals of `interval` steps, the walk where that is all of a sequence."""
    if interval >= work.longest:
        return walking(program, work)
    costs = Costs.of(program, work)
    choices = [shooting(program, work, interval)] + ([] if packed else [across(program, work, interval, costs.sweeps + 1)])
    return min(choices, key=costs.parallel)


def walking(program: Program, work: Workload) -> Launch:
    """A program for 32 channels of a sequence."""
    return Launch(variant="walk", block_state=min(32, power_of_two(work.state)), warps=1, ahead=8 if is_crowded(program) else 16)


def shooting(program: Program, work: Workload, interval: int) -> Launch:
    """As many channels in a program as leave enough programs for the card."""
    block = min(32, power_of_two(work.state))
    while block > 4 and work.sequences * math.ceil(work.state / block) < ENOUGH:
        block //= 2
    count = max(2, min(128 if block == 16 else 64, power_of_two(math.ceil(work.longest / interval))))
    warps = max(1, min(16, count * block // (64 if block <= 8 else 128)))
    return Launch(
        variant="shoot", block_state=block, warps=warps, ahead=ahead_of(interval, 1 if is_crowded(program) else 2), interval=interval, count=count
    )


def across(program: Program, work: Workload, interval: int, sweeps: int) -> Launch:
    """Rows of 64 channels, a few intervals of them in a program."""
    block = min(64, power_of_two(work.state))
    numbers, ahead = (256, 2) if is_crowded(program) else (512, 4)
    count = max(2, numbers // block)
    if count > 2 and work.sequences * math.ceil(work.state / block) * math.ceil(work.longest / (interval * count)) < FULL:
        count //= 2
    return Launch(
        variant="across",
        block_state=block,
        warps=4,
        ahead=ahead_of(interval, ahead),
        interval=interval,
        count=count,
        sweeps=sweeps,
    )


def intervals(longest: int) -> list[int]:
    """Intervals to choose from."""
    sizes = {SHORTEST, 16, 32, 64, 128, 256} | {4 * math.ceil(longest / (4 * count)) for count in (32, 64, 128)}
    return sorted(size for size in sizes if max(SHORTEST, longest / (1 << 13)) <= size < longest)


def plan(program: Program, work: Workload, interval: int | Literal["auto", "parallel"], *, packed: bool) -> Plan:
    """The plan for an interval that was asked for, or for the cheapest."""
    lanes = work.sequences * work.state
    costs = Costs.of(program, work)
    walk = costs.walk()

    def planned(steps: int, reason: str, seconds: float | None = None) -> Plan:
        parallel = walk if steps >= work.longest else costs.parallel(launch_for(program, work, steps, packed=packed)) if seconds is None else seconds
        sweep = parallel / (costs.sweeps + 1)
        return Plan(
            interval=steps,
            length=work.longest,
            lanes=lanes,
            walk=walk,
            sweep=sweep,
            parallel=parallel,
            patience=FORCED_PATIENCE if isinstance(interval, int) else max(4, min(PATIENCE, int(walk / max(sweep, 1e-9)))),
            by_autograd=False,
            reason=reason,
        )

    if isinstance(interval, int):
        return planned(min(interval, work.longest), f"interval={interval} was asked for")
    candidates = intervals(work.longest)
    if not candidates or (interval == "auto" and work.longest <= SHORT):
        return planned(work.longest, f"a sequence of at most {SHORT} steps is walked" if candidates else "the sequence is too short to be cut")
    best = min(candidates, key=lambda steps: costs.parallel(launch_for(program, work, steps, packed=packed)))
    parallel = costs.parallel(launch_for(program, work, best, packed=packed))
    insists, what = interval == "parallel", f"going through intervals of {best} steps about {costs.sweeps + 1} times"
    reason = compared(what, f"{parallel * 1e6:.0f} us", f"{walk * 1e6:.0f} us", insists and parallel > walk)
    if insists or parallel < walk:
        return planned(best, reason, parallel)
    return planned(work.longest, reason)
