"""Checks on what a problem claims of itself, made where it is solved, because a false claim would show as a wrong number and nothing else."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import InputError, StructureError
from pararnn.solver import drive as drives
from pararnn.solver.lanes import any_true, largest
from pararnn.solver.problem import Problem

# Disagreement allowed between the declared Jacobian and the derivative of the step, relative to its largest entry.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2, torch.bfloat16: 0.2, torch.float16: 0.1}

_checked: weakref.WeakSet[Any] = weakref.WeakSet()


def check_structure(problem: Problem) -> None:
    """Compare the declared Jacobian with the derivative of the step, once for each cell, along one direction at a few times.

    Raises:
        StructureError: they differ: the structure is too narrow for the step, or an analytic Jacobian is wrong.
    """
    if not problem.exact or problem.length == 0 or problem.rows == 0 or _known(problem.cell):
        return
    rows, times = min(2, problem.rows), min(3, problem.length)
    with torch.no_grad():
        drive = drives.map_timed(lambda leaf: leaf[:rows, :times].detach(), problem.drive)
        size = problem.state_size
        wave = torch.arange(rows * times * size, device=problem.initial.device).reshape(rows, times, size).cos().to(problem.initial.dtype)
        state = problem.initial[:rows, :1].detach() + 0.1 * wave
        # A direction without symmetry: one of equal entries would not see couplings that cancel.
        direction = wave.flip(-1) + 0.5
        value, jacobian = problem.linearize(state, drive)
        _, pullback = torch.func.vjp(lambda inner: problem.step(inner, drive), state)
        truth = pullback(direction)[0]
        declared = jacobian.adjoint().apply(direction)
        error = largest((truth - declared).abs())
        scale = largest(torch.stack((truth.abs().amax(), declared.abs().amax())))
    bound = TOLERANCE[problem.initial.dtype.to_real()]
    if error > bound * max(scale, bound):
        name = type(problem.cell).__name__
        raise StructureError(
            f"the {type(jacobian).__name__} Jacobian of {name} is not the derivative of its step: along one direction they differ by {error:.1e} "
            f"where the derivative is {scale:.1e}; declare a structure that holds every coupling (Dense always does), mend the analytic jacobian, "
            "or set exact_jacobian = False to use it as a quasi-Newton approximation",
            error=error,
            scale=scale,
        )
    _remember(problem.cell)


def _known(cell: object) -> bool:
    try:
        return cell in _checked
    except TypeError:
        return False


def _remember(cell: object) -> None:
    try:
        _checked.add(cell)
    except TypeError:
        # What cannot be held weakly is checked each time.
        return


def is_finite(problem: Problem, states: Tensor) -> bool:
    """Whether every sequence ends in finite numbers.

    Raises:
        InputError: one does not, and the drive holds NaN or infinity: the inputs are at fault.
    """
    if states.shape[1] == 0 or states.numel() == 0:
        return True
    last = states.detach()[:, -1] if problem.offsets is None else states.detach()[:, [end - 1 for end in problem.offsets[1:] if end]]
    if not any_true(~last.isfinite()):
        return True
    for index, leaf in enumerate(drives.leaves(problem.drive)):
        if any_true(~leaf.detach().isfinite()):
            fields = getattr(problem.drive, "_fields", ())
            where = f"the drive's {fields[index]}" if fields else f"leaf {index} of the drive"
            raise InputError(f"the states are not finite because {where} is not ({_first_bad(leaf)}); clean the inputs or the weights")
    return False


def _first_bad(leaf: Tensor) -> str:
    if torch._C._functorch.is_functorch_wrapped_tensor(leaf):
        return "in one of the mapped instances"
    at = (~leaf.detach().isfinite()).nonzero()[0].tolist()
    place = f"batch {at[0]}, step {at[1]}" if drives.is_timed(leaf) else f"index {at}"
    return f"first at {place}: {leaf.detach()[tuple(at)].item()}"
