"""The backend of `nanode/solve`: a `NANODECell` over whole sequences by the iteration of `pararnn_nanode.depth.iteration`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pararnn.selection import Request
from pararnn.solver import torch_backend
from pararnn.solver.config import NewtonConfig
from pararnn.solver.planner import Plan as CorePlan
from pararnn.solver.problem import Problem
from pararnn.solver.result import SolveResult, Status
from pararnn.transforms import inside_transform
from pararnn_nanode.depth.cell import NANODECell
from pararnn_nanode.depth.gradient import attach
from pararnn_nanode.depth.iteration import Trajectory, iterate
from pararnn_nanode.depth.planner import MARGIN, SHORT, default_blocks, estimates
from pararnn_nanode.depth.stages import Stages

NAME = "blocks"
DTYPES = ("float32", "float64", "complex64", "complex128")


def reasons(request: Request) -> tuple[str, ...]:
    """Obstacles: a dtype."""
    return () if request.dtype in DTYPES else (f"it works in {', '.join(DTYPES)}, the states are {request.dtype}",)


def probe() -> None:
    """Solve a small equation."""
    from pararnn.solver.api import cell_problem
    from pararnn_nanode.depth.examples import nanode

    cell, x = nanode(1, 2 * SHORT, seed=0)
    config = NewtonConfig(interval="parallel")
    solve(cell_problem(cell, x, config), config)


def solve(problem: Problem, config: NewtonConfig) -> SolveResult:
    """Solve `problem`, whose step is that of a `NANODECell`. What else is asked for, and what does not converge, goes to the general solver."""
    cell = getattr(problem.step, "__self__", None)
    if getattr(problem.step, "__func__", None) is not NANODECell.step or not isinstance(cell, NANODECell) or not _serves(problem, config, cell):
        return torch_backend.solve(problem, config)
    start = problem.initial[:, 0]
    stages = _Cells.of(cell, problem)
    with torch.no_grad():
        found = iterate(stages.detach(), start.detach(), way=cell.parallel, blocks=default_blocks(problem.length, start.dtype))
    if not found.converged:
        return torch_backend.solve(problem, config)
    after = attach(stages, start, found.states, found.correction) if torch.is_grad_enabled() else found.states[1:]
    return _result(problem, after.movedim(0, 1).contiguous(), found)


def _serves(problem: Problem, config: NewtonConfig, cell: NANODECell) -> bool:
    automatic = config.interval in ("auto", "parallel") and config.max_iters is None and config.atol == config.rtol == "auto"
    if config.interval == "auto":
        seconds, walk = estimates(cell.field, cell.method, problem.initial[:, 0], problem.length)
        automatic = automatic and min(seconds.values()) <= MARGIN * walk
    return (
        automatic
        and config.derivatives == "once"
        and problem.offsets is None
        and problem.length >= SHORT
        and problem.rows > 0
        and not inside_transform()
        and not torch.compiler.is_compiling()
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Cells(Stages):
    """The steps of a cell, whose every sequence has weights of its own."""

    @classmethod
    def of(cls, cell: NANODECell, problem: Problem) -> _Cells:
        # (batch, time, nodes, ...) -> for each node (time, batch, ...).
        nodes = cell.nodes(tuple(leaf.transpose(0, 1) for leaf in problem.drive), 2)
        sizes = torch.full((problem.length, 1, 1), cell.h, dtype=problem.initial.dtype.to_real(), device=problem.initial.device)
        return cls(field=cell.field, method=cell.method, weights=tuple(nodes), sizes=sizes)


def _result(problem: Problem, states: Tensor, found: Trajectory) -> SolveResult:
    lanes = problem.rows * problem.state_size
    interval = -(-problem.length // found.blocks)
    reason = "an equation whose state moves little in a step is solved with one Jacobian for each block of steps"
    planned = CorePlan(
        interval=min(interval, problem.length - 1),
        length=problem.length,
        lanes=lanes,
        walk=0.0,
        sweep=0.0,
        parallel=0.0,
        patience=1,
        by_autograd=False,
        reason=reason,
    )
    result = SolveResult(
        states=states,
        final=problem.last(states),
        status=Status.CONVERGED,
        converged=torch.ones_like(problem.initial[..., 0], dtype=torch.bool).flatten(),
        iterations=len(found.updates),
        updates=found.updates,
        walked=0,
        plan=planned,
        backend=NAME,
    )
    return result if bool(states.detach().sum().isfinite()) else replace(result, status=Status.NOT_FINITE)
