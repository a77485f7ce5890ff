"""The backend `native` of `solve`: steps compiled to C for the CPU."""

from __future__ import annotations

import functools

from pararnn.compiler.engine import Engine
from pararnn.compiler.repeating import Repeated, repeated
from pararnn.compiler.serving import obstacles, serve, try_out
from pararnn.selection import Request
from pararnn.solver.config import NewtonConfig
from pararnn.solver.problem import Problem
from pararnn.solver.result import SolveResult

# A step is compiled once on a machine: 1.7 s of a processor for a gated cell, 0.14 s in later processes; a first solve in plain torch takes 0.6 s.
# For each forward and backward, kernels then save 4 to 10 ms at (8, 100, 16), 7 to 23 ms at (4, 200, 8), 1 to 3 ms at 32 steps and fewer. So some
# hundred steps of training pay for the compiler from so many steps on, or so many numbers in all, or both of the second line.
STEPS, NUMBERS = 512, 1 << 15
BOTH = 64, 1 << 12


@functools.cache
def engine() -> Engine:
    """The engine of this process."""
    from pararnn.compiler.native.engine import NativeEngine

    return NativeEngine()


def reasons(request: Request) -> tuple[str, ...]:
    """Obstacles: those of `pararnn.compiler.serving`; and solves so small that few trainings pay for a compiler, unless the backend is named."""
    found = obstacles(engine(), request)
    steps, numbers = request.size("time", 1), request.size("rows", 1) * request.size("time", 1) * request.size("state", 1)
    is_auto = request.option("automatic") and not request.option("compiling")
    if is_auto and not _pays(steps, numbers):
        found += (
            f"{steps} steps with {numbers} numbers in all are few: 'auto' compiles from {STEPS} steps or {NUMBERS} numbers on, "
            f"or from {BOTH[0]} steps with {BOTH[1]} numbers; NewtonConfig(backend='native') compiles smaller ones",
        )
    return found


def _pays(steps: int, numbers: int) -> bool:
    """Whether training by such solves soon pays for the compiler: a rule of sizes alone, so that equal requests are served alike in every process."""
    return steps >= STEPS or numbers >= NUMBERS or (steps >= BOTH[0] and numbers >= BOTH[1])


def probe() -> tuple[str, ...] | None:
    """Compile a small step, solve with it and differentiate."""
    return try_out(engine(), device="cpu")


def solve(problem: Problem, config: NewtonConfig) -> SolveResult:
    """Solve `problem` by kernels made from its step; see `pararnn.compiler.serving.serve`."""
    return serve(engine(), problem, config)


def again(problem: Problem, config: NewtonConfig) -> Repeated | None:
    """What solves the next problem like this one; see `pararnn.solver.again`."""
    return repeated(engine(), problem, config)


solve.again = again  # type: ignore[attr-defined]
solve.engine = engine  # type: ignore[attr-defined]
