"""Solving a recurrence: the functions that users call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pararnn.cell import Drive, check_cell
from pararnn.errors import BackendError, DTypeError, ParaRNNError, ShapeError
from pararnn.scans.segments import as_offsets
from pararnn.selection import Request, Selection, select
from pararnn.solver import drive as drives
from pararnn.solver.config import NewtonConfig
from pararnn.solver.problem import Problem, analytic_form
from pararnn.solver.result import SolveResult
from pararnn.solver.torch_backend import walked
from pararnn.structures.base import Structure

DEFAULT = NewtonConfig()


def solve(
    step: Callable[[Tensor, Drive], Tensor],
    structure: type[Structure],
    drive: Drive,
    initial: Tensor,
    *,
    config: NewtonConfig = DEFAULT,
    cu_seqlens: Tensor | None = None,
    guess: Tensor | None = None,
    bounds: tuple[float, float] | None = None,
) -> SolveResult:
    """Solve `h[t] = step(h[t-1], drive[t])` for all `t`, in parallel over time; differentiable by drive, initial state and what `step` closes over.

    Args:
        step: the recurrence, `(*lead, state)` and the drive of a step to `(*lead, state)`.
        structure: the family that its Jacobians belong to, such as `Diagonal`.
        drive: a tensor `(batch, time, ...)`, or a named tuple of such and of per-channel tensors with fewer dimensions.
        initial: the state before the first step, `(batch, state)`, or `(segments, state)` for packed sequences.
        cu_seqlens: `(segments + 1,)` cumulative lengths of sequences packed into one row.
        guess: states `(batch, time, state)` to start from, such as those of the last training step; it changes the cost, not the answer.
        bounds: a range that no state leaves.

    Raises:
        StructureError: the Jacobians of `step` are not of that structure.
        ConvergenceError: `config.on_stall` is `"raise"`, and a sequence stalled.
        InputError: the drive holds NaN or infinity, and the states do for that reason.
    """
    problem = make_problem(step, structure, drive, initial, cu_seqlens=cu_seqlens, guess=guess, bounds=bounds, cell=getattr(step, "__self__", step))
    result: SolveResult = run(problem, config)
    return result


def newton_apply(
    cell: Any,
    x: Tensor,
    config: NewtonConfig | None = None,
    *,
    h0: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    guess: Tensor | None = None,
) -> Tensor:
    """The states `(batch, time, state)` of `cell` over `x` `(batch, time, input)`, solved in parallel over time."""
    config = DEFAULT if config is None else config
    result: SolveResult = run(cell_problem(cell, x, config, h0=h0, cu_seqlens=cu_seqlens, guess=guess), config)
    return result.states


def sequential_apply(cell: Any, x: Tensor, h0: Tensor | None = None, *, cu_seqlens: Tensor | None = None) -> Tensor:
    """The states `(batch, time, state)` of `cell` over `x` `(batch, time, input)`, one step after the other at linear cost."""
    return walk_problem(cell_problem(cell, x, DEFAULT, h0=h0, cu_seqlens=cu_seqlens)).states


def walk_problem(problem: Problem) -> SolveResult:
    """Walk `problem` step by step, whatever a planner would say."""
    with without_autocast(problem.initial):
        return walked(problem)


def cell_problem(
    cell: Any,
    x: Tensor,
    config: NewtonConfig,
    *,
    h0: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    guess: Tensor | None = None,
) -> Problem:
    """The problem that `cell` poses over `x` `(batch, time, input)`, with every optional member of the cell honoured."""
    check_cell(cell)
    if not isinstance(x, Tensor) or x.ndim != 3:
        found = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ShapeError(f"x must be a tensor (batch, time, input), got {found}")
    drive = _drive_of(cell, x)
    segments = x.shape[0] if cu_seqlens is None else len(as_offsets(cu_seqlens, x.shape[1])) - 1
    default = cell.initial_state(segments)
    if torch.is_autocast_enabled(x.device.type):
        drive = drives.map_leaves(lambda leaf: leaf.to(default.dtype), drive)
    initial = default if h0 is None else _as_state(h0, default.dtype)
    if guess is None and hasattr(cell, "guess"):
        guess = cell.guess(drive, initial)
    return make_problem(
        cell.step,
        cell.structure,
        drive,
        initial,
        cu_seqlens=cu_seqlens,
        guess=guess,
        bounds=getattr(cell, "state_bounds", None),
        state_size=cell.state_size,
        cell=cell,
        analytic=analytic_form(cell, config.jacobian),
        exact=getattr(cell, "exact_jacobian", True),
        linear=getattr(cell, "is_linear", False),
        budget=cell.newton_iters(x.shape[1]) if hasattr(cell, "newton_iters") else None,
        solve_ops=tuple(getattr(cell, "solve_ops", ())),
    )


def _drive_of(cell: Any, x: Tensor) -> Drive:
    try:
        return cell.drive(x)
    except RuntimeError as error:
        # Torch says that two matrices do not fit; the reader wants to know which input of which cell.
        if isinstance(error, ParaRNNError) or torch.compiler.is_compiling():
            raise
        raise ShapeError(f"the drive of {type(cell).__name__} does not take x of shape {tuple(x.shape)} and {x.dtype}: {error}") from error


def _as_state(h0: Any, dtype: torch.dtype) -> Tensor:
    """`h0` in the dtype of the states.

    Raises:
        DTypeError: it is no tensor, or it is complex and the states are real.
    """
    if not isinstance(h0, Tensor):
        raise DTypeError(f"h0 must be a tensor, got {type(h0).__name__}")
    if h0.is_complex() and not dtype.is_complex:
        raise DTypeError(f"h0 is {h0.dtype}, but the states are {dtype}; pass its real part")
    return h0.to(dtype)


def make_problem(
    step: Callable[[Tensor, Drive], Tensor],
    structure: type[Structure],
    drive: Drive,
    initial: Tensor,
    *,
    cu_seqlens: Tensor | None = None,
    guess: Tensor | None = None,
    state_size: int | None = None,
    **facts: Any,
) -> Problem:
    """A problem whose shapes fit.

    Raises:
        ShapeError: initial state, guess or offsets do not fit the drive.
        DTypeError: the drive would change the dtype of the states.
    """
    batch, length = drives.batch_and_length(drive)
    if cu_seqlens is not None and batch != 1:
        raise ShapeError(f"packed sequences lie in one row, (1, time, ...), but the drive has batch {batch}; concatenate them along time")
    offsets = None if cu_seqlens is None else as_offsets(cu_seqlens, length)
    count = batch if offsets is None else len(offsets) - 1
    size = initial.shape[-1] if state_size is None and initial.ndim else state_size
    if tuple(initial.shape) != (count, size):
        what = "batch" if offsets is None else "segments"
        raise ShapeError(f"the initial state has shape {tuple(initial.shape)}; it must be ({what}, state) = ({count}, {size})")
    for leaf in drives.leaves(drive):
        if torch.promote_types(leaf.dtype, initial.dtype) != initial.dtype:
            raise DTypeError(
                f"the drive is {leaf.dtype}, but the states are {initial.dtype}; "
                f"convert the inputs with x.to({initial.dtype}), or the cell with cell.to({leaf.dtype})"
            )
    if guess is not None and tuple(guess.shape) != (batch, length, size):
        raise ShapeError(f"the guess has shape {tuple(guess.shape)}; it must be (batch, time, state) = ({batch}, {length}, {size})")
    start = initial.unsqueeze(1 if offsets is None else 0)
    return Problem(step=step, structure=structure, drive=drive, initial=start, offsets=offsets, guess=guess, **facts)


@torch.compiler.disable(  # type: ignore[untyped-decorator]
    reason="a parallel solve decides on the host how often to iterate, which no single graph can hold; "
    "compile with fullgraph=False, which leaves the solve out, or use ParaRNN(solver='sequential')"
)
def run(problem: Problem, config: NewtonConfig) -> SolveResult:
    """Solve `problem` by the backend that `config` and the request select; kernels made for the very cell are asked first."""
    facts: dict[str, Any] = {"rows": problem.rows, "time": problem.length, "state": problem.state_size}
    options = {"structure": problem.structure.__name__, "packed": problem.offsets is not None, "cell": type(problem.cell).__qualname__}
    facts |= {"device": problem.initial.device, "dtype": problem.initial.dtype, "needs_grad": torch.is_grad_enabled(), "options": options}
    selection = _first_that_serves([Request.of(op, **facts) for op in (*problem.solve_ops, "solve")], config.backend)
    with without_autocast(problem.initial):
        result: SolveResult = selection.implementation(problem, config)
    return result


def _first_that_serves(requests: list[Request], backend: str) -> Selection:
    """The selection of the first request that some backend serves; the error of the last one, the general `solve`, if none does."""
    *special, general = requests
    for request in special:
        with contextlib.suppress(BackendError):
            return select(request, backend=backend)
    return select(general, backend=backend)


def without_autocast(like: Tensor) -> torch.autocast:
    """Recurrences are solved in the dtype of their states: rounding each step to half precision would change the trajectory."""
    return torch.autocast(like.device.type, enabled=False)
