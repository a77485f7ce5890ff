"""Walk or shoot: decided by counting what a step takes.

Where lanes are few, a walk waits for the results of one operation after the other, and intervals side by side fill the vectors that it leaves
empty. Where lanes are many, a walk keeps the processor busy, and sweeps would only be more work. The weights were measured on an AVX-512
processor; they are constants, so that the same solve is planned alike in every process.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pararnn.compiler.engine import Workload
from pararnn.compiler.native.layout import walking
from pararnn.compiler.native.stages import forward_stages
from pararnn.compiler.program import Operation, Program, Value
from pararnn.solver.planner import FORCED_PATIENCE, SHORT, Plan, compared

# Cycles until the result of a primitive is there, and instructions that it takes.
WEIGHTS = {
    "div": (14, 8),
    "sqrt": (20, 10),
    "rsqrt": (34, 18),
    "exp": (42, 18),
    "expm1": (50, 22),
    "log": (58, 30),
    "log1p": (70, 34),
    "sigmoid": (60, 26),
    "tanh": (64, 28),
    "softplus": (85, 38),
    "erf": (110, 70),
    "sin": (70, 90),
    "cos": (70, 90),
    "pow": (200, 260),
    "minimum": (6, 3),
    "maximum": (6, 3),
    "sign": (6, 3),
}
OTHERS = (4, 1)
# Instructions of a pass besides, which load and store.
PASS = 5
# Seconds of an instruction on a vector, and of a cycle of waiting.
INSTRUCTION, CYCLE = 4.0e-10, 3.0e-10
# Cycles that a step waits besides, because its state passes through memory.
MEMORY = 12
# Sweeps with slopes that a window needs as a rule, and seconds of a correction of one entry.
SWEEPS, CORRECTION = 2, 8e-9
# Steps of an interval, where the sequence is long enough for some intervals of that size.
INTERVALS, ENOUGH = (64, 32, 16), 8


@dataclass(frozen=True)
class Costs:
    """Instructions of the passes on a vector, and cycles from one state to the next."""

    early: int
    value: int
    advance: int
    latency: int


@functools.lru_cache(1024)
def costs_of(program: Program) -> Costs:
    """The costs of a step of `program`."""
    stages = forward_stages(program)
    early, value, advance = (_work(stage.operations) for stage in (stages.early, stages.value, stages.advance))
    return Costs(early, value, advance, _latency(stages.value.operations, stages.value.outputs[0]))


def plan(program: Program, work: Workload, interval: int | Literal["auto", "parallel"]) -> Plan:
    """The interval that is asked for, or the one that is estimated to take least."""
    longest, lanes = work.longest, work.sequences * work.state
    facts: dict[str, Any] = {"length": longest, "lanes": lanes, "by_autograd": False}
    if longest * lanes == 0 or (interval == "auto" and longest <= SHORT):
        reason = f"a sequence of at most {SHORT} steps is walked"
        return Plan(interval=longest, walk=0.0, sweep=0.0, parallel=0.0, patience=0, reason=reason, **facts)
    costs = costs_of(program)
    walk = _walk(costs, work)
    if isinstance(interval, int):
        size = min(interval, longest)
        facts |= {"walk": walk, "sweep": _sweep(costs, work), "parallel": _parallel(costs, work, size)}
        return Plan(interval=size, patience=FORCED_PATIENCE, reason=f"interval={interval} was asked for", **facts)
    size = next((steps for steps in INTERVALS if steps * ENOUGH <= longest), max(1, min(INTERVALS[-1], longest // 2)))
    sweep, parallel = _sweep(costs, work), _parallel(costs, work, size)
    patience = max(3, min(FORCED_PATIENCE, int(walk / sweep)))
    insists = interval == "parallel"
    reason = compared(
        f"a parallel solve with intervals of {size} steps", f"{parallel * 1e3:.2f} ms", f"{walk * 1e3:.2f} ms", insists and parallel > walk
    )
    chosen = size if parallel < walk or insists else longest
    return Plan(interval=chosen, walk=walk, sweep=sweep, parallel=parallel, patience=patience, reason=reason, **facts)


def _walk(costs: Costs, work: Workload) -> float:
    layout = walking(work.sequences, work.state, work.longest, max(4, work.itemsize))
    vectors = layout.block * layout.together * max(4, work.itemsize) / 64
    tasks = -(-work.sequences // layout.together) * -(-work.state // layout.block)
    step = max((costs.latency + MEMORY) * CYCLE, vectors * costs.value * INSTRUCTION) + vectors * costs.early * INSTRUCTION
    return tasks * work.longest * step


def _sweep(costs: Costs, work: Workload) -> float:
    return _vectors(work) * costs.advance * INSTRUCTION


def _parallel(costs: Costs, work: Workload, interval: int) -> float:
    written = _vectors(work) * (costs.early + costs.value) * INSTRUCTION
    corrections = (SWEEPS + 2) * work.rows * work.length * work.state / interval * CORRECTION
    return written + SWEEPS * _sweep(costs, work) + corrections


def _vectors(work: Workload) -> float:
    return work.rows * work.length * work.state * max(4, work.itemsize) / 64


def _work(operations: Sequence[Operation]) -> int:
    return PASS + sum(WEIGHTS.get(operation.primitive, OTHERS)[1] for operation in operations)


def _latency(operations: Sequence[Operation], output: Value) -> int:
    """Cycles from the state to `output`, along the slowest way."""
    ready: dict[Value, int] = {"state": 0}
    for operation in operations:
        begun = max((ready[argument] for argument in operation.arguments if argument in ready), default=0)
        ready[operation.result] = begun + WEIGHTS.get(operation.primitive, OTHERS)[0]
    return ready.get(output, 0)
