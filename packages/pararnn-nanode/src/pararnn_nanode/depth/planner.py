"""Whether to solve in parallel over depth, how, and why.

A walk of `L` steps makes a few small operations a step, one after the other. An iteration makes the same few operations once, each over all steps,
and a short walk over blocks; it multiplies the arithmetic by the number of iterations. So it pays where operations are too small to keep the machine
busy: many steps, few samples, small states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from pararnn.costs import Machine, machine_of
from pararnn_nanode.fields.base import Field
from pararnn_nanode.integrate.methods import Method
from pararnn_nanode.integrate.runge_kutta import RungeKutta
from pararnn_nanode.integrate.schedule import Schedule

Parallel: TypeAlias = Literal["newton", "picard", "windowed", "auto"]
Way: TypeAlias = Literal["newton", "picard"]
Choice: TypeAlias = Literal["newton", "picard", "windowed", "walk"]

# Fewer steps than this are walked without further thought.
SHORT = 64
# Iterations that a typical solve takes: two corrections in single precision, five in double, each Picard's some more.
NEWTON_ITERATIONS = {torch.float32: 2, torch.complex64: 2}
PICARD_ITERATIONS = {torch.float32: 8, torch.complex64: 8}
PRECISE_NEWTON, PRECISE_PICARD = 5, 14
# Calls of torch in one step of a walk, and in one iteration of a parallel solve besides the field, and in one block of it.
STEP_CALLS, SWEEP_CALLS, BLOCK_CALLS, LEAP_CALLS = 3, 45, 3, 10
# On an accelerator: one call more a step of a walk, seconds that any solve takes besides, and seconds a step in a sum that runs over all steps.
ACCELERATED_STEP_CALLS, SETUP, RUNNING_SUM = 4, 2e-3, 0.18e-6
# Passes over all states in one iteration besides the field, and what a number in a product of a matrix and a vector, or
# of two matrices, costs in elements of an addition.
PASSES, PRODUCT, COMPOSE = 14, {"cpu": 0.4, "cuda": 0.5}, 0.1
# A parallel solve has to be this much faster to be chosen: its estimate rests on a number of iterations that nobody knows before.
MARGIN = 0.7
MOST_DENSE = 128
DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to do and why.

    Attributes:
        choice: "walk", or the way to solve in parallel.
        blocks: blocks of the iteration.
        window: steps of a window.
        walk, parallel: estimated seconds of a forward pass.
        reason: one sentence.
    """

    choice: Choice
    blocks: int
    window: int
    walk: float
    parallel: float
    reason: str


def plan(field: Field, method: Method, schedule: Schedule, x: Tensor, *, parallel: Parallel, window: int | None = None) -> Plan:
    """The plan for a solve that was asked for as `parallel`; anything but "auto" is done where it can be done."""
    steps = schedule.steps
    chosen = window or default_window(steps)
    depth = min(chosen, steps) if parallel == "windowed" else steps
    blocks = default_blocks(depth, x.dtype)
    seconds, walk_seconds = estimates(field, method, x, steps)
    best = min(seconds, key=lambda way: seconds[way])
    facts: dict[str, Any] = {"blocks": blocks, "window": chosen, "walk": walk_seconds}
    if parallel != "auto":
        way = best if parallel == "windowed" else parallel
        reason = f"Solved in parallel over depth because parallel={parallel!r} was asked for."
        return Plan(choice=parallel, parallel=seconds.get(way, math.inf), reason=reason, **facts)
    if (obstacle := _obstacle(method, x, steps)) is not None:
        return Plan(choice="walk", parallel=math.inf, reason=f"Walked step by step because {obstacle}.", **facts)
    verdict = f"{steps} steps are estimated at {walk_seconds * 1e3:.1f} ms walked and {seconds[best] * 1e3:.1f} ms in parallel ({best})"
    if seconds[best] > MARGIN * walk_seconds:
        return Plan(choice="walk", parallel=seconds[best], reason=f"Walked step by step because {verdict}.", **facts)
    return Plan(choice=best, parallel=seconds[best], reason=f"Solved in parallel over depth because {verdict}.", **facts)


def estimates(field: Field, method: Method, x: Tensor, steps: int) -> tuple[dict[Way, float], float]:
    """Estimated seconds of a forward pass by each way that `field` allows, and of a walk, from states shaped as `x`."""
    blocks = default_blocks(steps, x.dtype)
    ways: tuple[Way, ...] = ("picard",) if field.structure is None else ("newton", "picard")
    return {way: _seconds(field, method, x, steps, way=way, blocks=blocks) for way in ways}, _walk_seconds(field, method, x, steps)


def default_blocks(steps: int, dtype: torch.dtype) -> int:
    """Blocks to begin with: the square root of the number of steps, half of it in single precision, whose few digits need few iterations anyway."""
    return max(1, min(steps, max(16, round(math.sqrt(steps) / (2 if dtype in NEWTON_ITERATIONS else 1)))))


def default_window(steps: int) -> int:
    """Steps of a window: eight times the square root, so that a window is long enough to be worth an iteration."""
    return max(1, min(steps, max(SHORT, 8 * round(math.sqrt(steps)))))


def _obstacle(method: Method, x: Tensor, steps: int) -> str | None:
    if steps < SHORT:
        return f"{steps} steps are too few to be worth an iteration (at least {SHORT})"
    if not isinstance(method, RungeKutta):
        return f"{method.name} carries more than the state from step to step"
    if x.dtype not in DTYPES:
        return f"parallel solves work in single and double precision, and the state is {x.dtype}"
    return None


def _evaluation(field: Field, x: Tensor, steps: int, machine: Machine) -> float:
    """Seconds of one evaluation of the field at all of `steps` states."""
    # Costs are those of memory, counted for single precision.
    elements = steps * x.numel() * x.element_size() / 4
    couples = 1 if field.structure is None else field.structure.cost(x.shape[-1])[1] / x.shape[-1]
    weights = max(1.0, couples if field.structure is not None else 16.0)
    return machine.operation(elements * weights * PRODUCT.get(x.device.type, 0.5)) + machine.operation(elements)


def _walk_seconds(field: Field, method: Method, x: Tensor, steps: int) -> float:
    machine = machine_of(x.device)
    calls = STEP_CALLS if x.device.type == "cpu" else ACCELERATED_STEP_CALLS
    return steps * method.evaluations * (_evaluation(field, x, 1, machine) + (calls - 2) * machine.operation(x.numel()))


def _seconds(field: Field, method: Method, x: Tensor, steps: int, *, way: Way, blocks: int) -> float:
    machine = machine_of(x.device)
    single = x.dtype in NEWTON_ITERATIONS
    if way == "newton":
        iterations = NEWTON_ITERATIONS[x.dtype] if single else PRECISE_NEWTON
        size = x.shape[-1]
        compose, apply = field.structure.cost(size) if field.structure is not None else (0, 0)
        if apply > MOST_DENSE**2:
            return math.inf
        rows = x.numel() // size
        prepare = machine.operation(blocks * rows * compose * COMPOSE) + 4 * machine.operation(blocks * rows * apply)
        between = blocks * (BLOCK_CALLS - 1) * machine.call + blocks * machine.operation(rows * apply)
    else:
        iterations = PICARD_ITERATIONS[x.dtype] if single else PRECISE_PICARD
        prepare = 0.0
        between = 0.0 if x.device.type == "cpu" else steps * RUNNING_SUM
    evaluation = method.evaluations * _evaluation(field, x, steps, machine)
    sweep = evaluation + PASSES * (machine.operation(steps * x.numel()) - machine.call) + SWEEP_CALLS * machine.call + between
    setup = 0.0 if x.device.type == "cpu" else SETUP
    return setup + blocks * LEAP_CALLS * machine.call + prepare + iterations * sweep
