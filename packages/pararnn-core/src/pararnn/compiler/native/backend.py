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

# A sequence of so many steps, or so many numbers in all, is worth the second that a C compiler takes when it meets a step for the first time.
STEPS, NUMBERS = 1024, 1 << 15


@functools.cache
def engine() -> Engine:
    """The engine of this process."""
    from pararnn.compiler.native.engine import NativeEngine

    return NativeEngine()


def reasons(request: Request) -> tuple[str, ...]:
    """Obstacles: those of `pararnn.compiler.serving`; and a solve that is over before a compiler would be, unless the backend is named."""
    found = obstacles(engine(), request)
    steps, numbers = request.size("time", 1), request.size("rows", 1) * request.size("time", 1) * request.size("state", 1)
    is_auto = request.option("automatic") and not request.option("compiling")
    if is_auto and steps < STEPS and numbers < NUMBERS:
        found += (f"{steps} steps with {numbers} numbers in all are few: 'auto' compiles from {STEPS} steps or {NUMBERS} numbers on",)
    return found


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
