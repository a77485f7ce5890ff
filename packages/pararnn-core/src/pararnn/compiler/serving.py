"""Whether an engine can serve a solve, in sentences: what the engine says, what the solve asks for, and what the step is made of."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.compiler.engine import Engine
from pararnn.compiler.solving import solve_compiled, solve_nothing
from pararnn.errors import CompilationError
from pararnn.selection import Request
from pararnn.solver.config import NewtonConfig
from pararnn.solver.problem import Problem
from pararnn.solver.result import SolveResult
from pararnn.structures.diagonal import Diagonal


def obstacles(engine: Engine, request: Request) -> tuple[str, ...]:
    """Every obstacle to solving `request` by `engine`."""
    found = [*engine.reasons(request)]
    if request.option("structure", "Diagonal") != "Diagonal":
        found.append(f"it compiles channelwise steps, whose structure is Diagonal; this one is {request.option('structure')}")
    if request.option("linear"):
        found.append("the cell is linear, and one scan solves it")
    if not request.option("exact", True):
        found.append("the Jacobian is declared to be inexact, and kernels take the exact one")
    if request.option("derivatives") == "twice":
        found.append("NewtonConfig(derivatives='twice') asks for second derivatives, and kernels have first ones")
    if request.option("on_stall") == "raise":
        found.append("NewtonConfig(on_stall='raise') asks to be told of a stall, and kernels walk what stalls")
    if request.option("jacobian") == "analytic":
        found.append("NewtonConfig(jacobian='analytic') insists on the cell's own formula, and kernels are made from its step")
    if request.option("scan_backend", "auto") != "auto":
        found.append(f"NewtonConfig(scan_backend={request.option('scan_backend')!r}) names a scan, and kernels have their own inside")
    if request.option("transformed"):
        found.append("a torch.func transform, forward-mode AD or a tracer is active, which kernels are closed to")
    step = request.option("step")
    if step is not None and not found:
        found += step.obstacles()
    return tuple(found)


def serve(engine: Engine, problem: Problem, config: NewtonConfig) -> SolveResult:
    """Solve `problem` by kernels that `engine` makes of its step; see `pararnn.solve`.

    Raises:
        CompilationError: the step cannot be compiled; the message names every obstacle.
        InputError: on a CPU, the drive or the initial state holds NaN or infinity, and the states do for that reason.
    """
    if problem.is_empty:
        return solve_nothing(engine, problem)
    found = problem.compiled
    if not isinstance(found, tuple):
        return solve_compiled(engine, found, problem, config)
    raise CompilationError(
        f"the step of {type(problem.cell).__name__} cannot be compiled: {'; '.join(found)}; NewtonConfig(backend='torch') solves any step",
        obstacles=found,
    )


def try_out(engine: Engine, *, device: str) -> tuple[str, ...] | None:
    """Solve and differentiate a small recurrence on `device`; its obstacles where it cannot be, None where it could."""
    found = engine.reasons(Request.of("solve", device=device))
    if found:
        return found
    drive = torch.ones(1, 70, 2, device=device, requires_grad=True)
    problem = Problem(step=_probed, structure=Diagonal, drive=drive, initial=torch.zeros(1, 1, 2, device=device), cell=_probed)
    for interval in (8, 70):
        serve(engine, problem, NewtonConfig(interval=interval)).states.sum().backward()
    return None


def _probed(state: Tensor, drive: Tensor) -> Tensor:
    return torch.tanh(state + drive)
