"""From a cell and its inputs to a problem whose parts fit each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pararnn.cell import Drive, check_cell, optional
from pararnn.errors import DTypeError, ParaRNNError, ShapeError
from pararnn.scans.segments import as_offsets
from pararnn.solver import drive as drives
from pararnn.solver.config import NewtonConfig
from pararnn.solver.problem import Problem, analytic_form
from pararnn.structures.base import Structure


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
    check_inputs(x)
    return pose(cell, x, config, h0=h0, cu_seqlens=cu_seqlens, guess=guess)


def pose(cell: Any, x: Tensor, config: NewtonConfig, *, h0: Tensor | None, cu_seqlens: Tensor | None, guess: Tensor | None) -> Problem:
    """The same for a cell and inputs that are checked already."""
    drive, initial = begin(cell, x, h0=h0, cu_seqlens=cu_seqlens)
    return complete(cell, x, config, drive, initial, cu_seqlens=cu_seqlens, guess=guess)


def begin(cell: Any, x: Tensor, *, h0: Tensor | None, cu_seqlens: Tensor | None) -> tuple[Drive, Tensor]:
    """The drive of `cell` over `x`, and where it starts: what a problem is posed of."""
    drive = _drive_of(cell, x)
    segments = x.shape[0] if cu_seqlens is None else len(as_offsets(cu_seqlens, x.shape[1])) - 1
    default = cell.initial_state(segments)
    if torch.is_autocast_enabled(x.device.type):
        drive = drives.map_leaves(lambda leaf: leaf.to(default.dtype), drive)
    return drive, default if h0 is None else _as_state(h0, default.dtype)


def complete(
    cell: Any, x: Tensor, config: NewtonConfig, drive: Drive, initial: Tensor, *, cu_seqlens: Tensor | None, guess: Tensor | None
) -> Problem:
    """The problem of a drive and an initial state that `begin` gave."""
    if guess is None and (propose := optional(cell, "guess")) is not None:
        guess = propose(drive, initial)
    iterations = optional(cell, "newton_iters")
    return make_problem(
        cell.step,
        cell.structure,
        drive,
        initial,
        cu_seqlens=cu_seqlens,
        guess=guess,
        bounds=optional(cell, "state_bounds"),
        state_size=cell.state_size,
        cell=cell,
        analytic=analytic_form(cell, config.jacobian),
        exact=optional(cell, "exact_jacobian", True),
        linear=optional(cell, "is_linear", False),
        budget=None if iterations is None else iterations(x.shape[1]),
        solve_ops=tuple(optional(cell, "solve_ops", ())),
    )


def check_inputs(x: Any) -> None:
    """Raise `ShapeError` unless `x` is a tensor of three dimensions."""
    if not isinstance(x, Tensor) or x.ndim != 3:
        found = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ShapeError(f"x must be a tensor (batch, time, input), got {found}")


def _drive_of(cell: Any, x: Tensor) -> Drive:
    try:
        return cell.drive(x)
    except RuntimeError as error:
        # Torch says that two matrices do not fit; the reader wants to know which input of which cell.
        if isinstance(error, ParaRNNError) or torch.compiler.is_compiling():
            raise
        told = f"the drive of {type(cell).__name__} does not take x of shape {tuple(x.shape)} and {x.dtype}: {error}"
        dtype = _dtype_of_weights(cell)
        if dtype is not None and dtype != x.dtype and not x.is_complex() and _is_driven(cell, x.to(dtype)):
            raise DTypeError(f"{told}; its weights are {dtype}, so convert the inputs with x.to({dtype})") from error
        raise ShapeError(told) from error


def _dtype_of_weights(cell: Any) -> torch.dtype | None:
    """The dtype that the parameters of a cell share, None where they differ or there are none."""
    weights = cell.parameters() if isinstance(cell, nn.Module) else ()
    found = {weight.dtype for weight in weights if weight.is_floating_point() or weight.is_complex()}
    return found.pop() if len(found) == 1 else None


def _is_driven(cell: Any, x: Tensor) -> bool:
    """Whether the cell makes a drive of `x`."""
    try:
        cell.drive(x)
    except Exception:
        return False
    return True


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
        if leaf.dtype is not initial.dtype and torch.promote_types(leaf.dtype, initial.dtype) != initial.dtype:
            advice = f"convert the inputs with x.to({initial.dtype}), or the cell with cell.to({leaf.dtype})"
            if _dtype_of_weights(facts.get("cell")) == leaf.dtype:
                # The cell is what it should be: its initial state is made in a dtype of its own.
                advice = f"the weights are {leaf.dtype} too, so let initial_state follow them, as weight.new_zeros(batch, state_size) does"
            raise DTypeError(f"the drive is {leaf.dtype}, but the states are {initial.dtype}; {advice}")
    if guess is not None and tuple(guess.shape) != (batch, length, size):
        raise ShapeError(f"the guess has shape {tuple(guess.shape)}; it must be (batch, time, state) = ({batch}, {length}, {size})")
    start = initial.unsqueeze(1 if offsets is None else 0)
    problem = Problem(step=step, structure=structure, drive=drive, initial=start, offsets=offsets, guess=guess, **facts)
    # It is known already, and it is asked for again and again.
    vars(problem)["length"] = length
    return problem
