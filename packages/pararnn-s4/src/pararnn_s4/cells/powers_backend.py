"""The backend of `s4/solve` in plain PyTorch: a `ParaS4` over whole sequences by powers of its transition, see `pararnn_s4.cells.powers`."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.scans.segments import by_length
from pararnn.selection import Request
from pararnn.solver import torch_backend
from pararnn.solver.config import NewtonConfig
from pararnn.solver.lanes import any_true
from pararnn.solver.planner import Plan
from pararnn.solver.problem import Problem
from pararnn.solver.result import SolveResult, Status
from pararnn_s4.cells.dplr import LowRankDrive, ParaS4
from pararnn_s4.cells.powers import states_by_powers

NAME = "powers"
DTYPES = ("float32", "float64")


def reasons(request: Request) -> tuple[str, ...]:
    """Obstacles: a dtype, or a device without double precision."""
    found = []
    if request.dtype not in DTYPES:
        found.append(f"it works in {' and '.join(DTYPES)}, the states are {request.dtype}")
    if request.device == "mps":
        found.append("it makes powers in float64, which mps does not have")
    return tuple(found)


def probe() -> None:
    """All states of a small cell."""
    transition, column = torch.eye(2, dtype=torch.float64).expand(3, 2, 2) / 2, torch.ones(3, 2, dtype=torch.float64)
    states_by_powers(transition, column, torch.ones(2, 5, 3), torch.zeros(2, 3, 2))


def solve(problem: Problem, config: NewtonConfig) -> SolveResult:
    """Solve `problem`, whose step is that of a `ParaS4`; anything else, and powers that overflow where states may not, go to the general solver."""
    drive = problem.drive
    own = getattr(problem.step, "__func__", None) is ParaS4.step and isinstance(drive, LowRankDrive)
    if not own or problem.length == 0 or problem.rows == 0:
        return torch_backend.solve(problem, config)
    states = _states(problem, drive)
    if any_true(~states.detach().sum().isfinite()):
        return torch_backend.solve(problem, config)
    lanes = problem.rows * problem.state_size
    reason = "the transition is the same at every step, so its powers give all states"
    planned = Plan(interval=1, length=problem.length, lanes=lanes, walk=0.0, sweep=0.0, parallel=0.0, patience=1, by_autograd=False, reason=reason)
    return SolveResult(
        states=states,
        final=problem.last(states),
        status=Status.CONVERGED,
        converged=torch.ones_like(problem.initial[..., 0], dtype=torch.bool).flatten(),
        iterations=1,
        updates=(),
        walked=0,
        plan=planned,
        backend=NAME,
    )


def _states(problem: Problem, drive: LowRankDrive) -> Tensor:
    """States `(rows, time, state)` on the graph."""
    cell: ParaS4 = problem.step.__self__  # type: ignore[attr-defined]
    transition, column = drive.matrices(is_real=cell.ssm.is_real), drive.gain.mT.double()
    inputs = drive.u.to(problem.initial.dtype)
    if problem.offsets is None:
        return _slotted(cell, transition, column, inputs, problem.initial[:, 0])
    pieces, places = [], []
    for group in by_length(problem.offsets, device=inputs.device):
        padded = _slotted(cell, transition, column, inputs[0, group.positions], problem.initial[0, group.segments])
        pieces.append(padded[group.inside])
        places.append(group.positions[group.inside])
    states = torch.cat(pieces)
    return torch.zeros_like(states).index_copy(0, torch.cat(places), states).unsqueeze(0)


def _slotted(cell: ParaS4, transition: Tensor, column: Tensor, inputs: Tensor, initial: Tensor) -> Tensor:
    """States `(batch, time, state)` of the cell, its input slot included, for `inputs` `(batch, time, d_model)`."""
    start = cell.slotted(initial)[:, :-1].mT
    states = states_by_powers(transition, column, inputs, start)
    return torch.cat((states.permute(1, 2, 3, 0), inputs.unsqueeze(-2)), dim=-2).flatten(-2)
