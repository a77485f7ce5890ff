"""The backend `triton` of `solve`: steps compiled to Triton for a GPU."""

from __future__ import annotations

import functools

import torch

from pararnn.compiler.engine import Engine
from pararnn.compiler.repeating import Repeated, repeated
from pararnn.compiler.serving import obstacles, serve, try_out
from pararnn.selection import Request
from pararnn.solver.config import NewtonConfig
from pararnn.solver.problem import Problem
from pararnn.solver.result import SolveResult


@functools.cache
def engine() -> Engine:
    """The engine of this process."""
    from pararnn.compiler.gpu.engine import TritonEngine

    return TritonEngine()


def reasons(request: Request) -> tuple[str, ...]:
    """Obstacles: those of `pararnn.compiler.serving`; and Triton's interpreter, unless the backend is named."""
    found = obstacles(engine(), request)
    if request.device == "cpu" and request.option("automatic"):
        found += ("Triton is interpreted on the CPU, which is slow: it has to be named",)
    return found


def probe() -> tuple[str, ...] | None:
    """Compile a small step, solve with it and differentiate."""
    return try_out(engine(), device="cuda" if torch.cuda.is_available() else "cpu")


def solve(problem: Problem, config: NewtonConfig) -> SolveResult:
    """Solve `problem` by kernels made from its step; see `pararnn.compiler.serving.serve`."""
    return serve(engine(), problem, config)


def again(problem: Problem, config: NewtonConfig) -> Repeated | None:
    """What solves the next problem like this one; see `pararnn.solver.again`."""
    return repeated(engine(), problem, config)


solve.again = again  # type: ignore[attr-defined]
# A single step is worth a kernel of its own.
solve.steps_too = True  # type: ignore[attr-defined]
solve.engine = engine  # type: ignore[attr-defined]
