"""Checks on what a problem claims of itself, made where it is solved, because a false claim would show as a wrong number and nothing else."""

from __future__ import annotations

import collections
import weakref
from typing import Any

import torch
from torch import Tensor

from pararnn.cell import Drive
from pararnn.errors import CellError, InputError, StructureError
from pararnn.solver import drive as drives
from pararnn.solver.lanes import any_true, largest
from pararnn.solver.problem import Problem
from pararnn.structures.base import push_forward

# Disagreement allowed between the declared Jacobian and the derivative of the step, relative to its largest entry.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2, torch.bfloat16: 0.2, torch.float16: 0.1}

# A cell is checked in its first solves, and in one of so many after that.
ALWAYS, EACH = 4, 8
# How often each cell was solved, by what it claims: the same step may be solved under another structure, or by another formula.
_solves: weakref.WeakKeyDictionary[Any, collections.Counter[tuple[object, ...]]] = weakref.WeakKeyDictionary()


def check_structure(problem: Problem) -> None:
    """Compare what the cell declares with what its step does, every few solves, along one direction at a few times.

    Raises:
        CellError: the step changes shape or dtype of the state, writes into it, is random, gives another result for a state alone than beside
            others, or another value than `linearize` says.
        StructureError: the declared Jacobian is not its derivative: the structure is too narrow, an analytic Jacobian is wrong, or a cell that is
            declared linear is not.
    """
    if not problem.exact or problem.length == 0 or problem.rows == 0:
        return
    turn = _count(problem)
    if turn > ALWAYS and turn % EACH:
        return
    rows, times, size = min(2, problem.rows), min(8, problem.length), problem.state_size
    with torch.no_grad():
        # Spread over the sequence, and elsewhere each time: a coupling may depend on the inputs.
        spread = torch.arange(times, device=problem.initial.device) * problem.length // times
        drive = drives.map_timed(lambda leaf: leaf[:rows, (spread + turn - 1) % problem.length].detach(), problem.drive)
        wave = torch.arange(rows * times * size, device=problem.initial.device).reshape(rows, times, size).cos().to(problem.initial.dtype)
        state = problem.initial[:rows, :1].detach() + 0.1 * wave
        _check_step(problem, state, drive)
        # A direction without symmetry: one of equal entries would not see couplings that cancel.
        _check_slope(problem, state, drive, direction=wave.flip(-1) + 0.5)


def _check_step(problem: Problem, state: Tensor, drive: Drive) -> None:
    """The step is a pure function that treats each lead index apart."""
    name = type(problem.cell).__name__
    given = state.clone()
    reached = problem.step(given, drive)
    if _differ(given, state):
        raise CellError(f"the step of {name} writes into the state it is given; build a new tensor instead (no names that end in _)")
    if reached.shape != state.shape or reached.dtype != state.dtype:
        found, wanted = (f"{tuple(tensor.shape)} in {tensor.dtype}" for tensor in (reached, state))
        raise CellError(
            f"the step of {name} makes a state {found} from one {wanted}; it must keep shape and dtype (is its drive of the state's dtype?)"
        )
    if _differ(reached, problem.step(state, drive)):
        raise CellError(
            f"equal arguments give different states in the step of {name}: it draws random numbers; noise and dropout belong into the drive, or "
            "outside the cell"
        )
    for row, time in ((0, 0), (state.shape[0] - 1, state.shape[1] - 1)):
        here = slice(row, row + 1), slice(time, time + 1)
        alone = problem.step(state[here], drives.map_timed(lambda leaf, here=here: leaf[here], drive))  # type: ignore[misc]
        if _differ(alone, reached[here]):
            raise CellError(
                f"the step of {name} gives another result for a state alone than beside others: it mixes sequences or times (a mean or softmax over "
                "a leading dimension, a batch norm), or it branches on values; a step may combine channels of one state only, dim=-1"
            )


def _check_slope(problem: Problem, state: Tensor, drive: Drive, *, direction: Tensor) -> None:
    """The declared Jacobian is the derivative of the step."""
    name = type(problem.cell).__name__

    def step(inner: Tensor) -> Tensor:
        return problem.step(inner, drive)

    # Forward mode, because torch.func.vjp refuses to run under the saved-tensor hooks of activation checkpointing.
    reached, truth = push_forward(step, state, direction)
    value, jacobian = problem.linearize(state, drive)
    if wrong := _differ(value, reached):
        raise CellError(f"linearize of {name} gives another next state than its step: they differ by {wrong[0]:.1e}; mend linearize")
    if wrong := _differ(jacobian.apply(direction), truth):
        error, scale = wrong
        remedy = "mend the analytic jacobian" if problem.analytic is not None else "declare a structure that holds every coupling (Dense always does)"
        raise StructureError(
            f"the {type(jacobian).__name__} Jacobian of {name} is not the derivative of its step: along one direction they differ by {error:.1e} "
            f"where the derivative is {scale:.1e}; {remedy}, or set exact_jacobian = False to use it as a quasi-Newton approximation; "
            "pararnn.conformance.verify_cell names the channels",
            error=error,
            scale=scale,
        )
    # A straight line reaches as far as the step goes; any direction will do, and a long one sees small curvature.
    if problem.linear and (wrong := _differ(reached + truth, step(state + direction))):
        raise StructureError(f"{name} is declared linear, but its step bends by {wrong[0]:.1e} along a line; remove is_linear", error=wrong[0])


def _differ(ours: Tensor, truth: Tensor) -> tuple[float, float] | None:
    """The largest difference and the scale it is measured on, None where it is within tolerance."""
    error = largest((truth - ours).abs())
    scale = largest(torch.stack((truth.abs().amax(), ours.abs().amax())))
    bound = TOLERANCE[truth.dtype.to_real()]
    return (error, scale) if error > bound * max(scale, bound) else None


def _claims(problem: Problem) -> tuple[object, ...]:
    return problem.structure, problem.analytic is None, problem.linear


def _count(problem: Problem) -> int:
    """Which solve of its cell with these claims this is, from 1; always the first for what cannot be held weakly."""
    try:
        counts = _solves.setdefault(problem.cell, collections.Counter())
    except TypeError:
        return 1
    counts[_claims(problem)] += 1
    return counts[_claims(problem)]


def is_finite(problem: Problem, states: Tensor) -> bool:
    """Whether every state is finite; taken for granted while a graph is compiled, which cannot look at them.

    Raises:
        InputError: one does not, and the drive or the initial state holds NaN or infinity: the inputs are at fault.
    """
    if states.shape[1] == 0 or states.numel() == 0 or torch.compiler.is_compiling():
        return True
    # One pass that stores nothing; a sum can overflow where its terms do not, so it only raises the suspicion.
    if not any_true(~states.detach().sum().isfinite()) or not any_true(~states.detach().isfinite()):
        return True
    for index, leaf in enumerate(drives.leaves(problem.drive)):
        if any_true(~leaf.detach().isfinite()):
            fields = getattr(problem.drive, "_fields", ())
            where = f"the drive's {fields[index]}" if fields else f"leaf {index} of the drive"
            raise InputError(f"the states are not finite because {where} is not ({_first_bad(leaf)}); clean the inputs or the weights")
    if any_true(~problem.initial.detach().isfinite()):
        raise InputError("the states are not finite because the initial state is not; clean h0")
    return False


def _first_bad(leaf: Tensor) -> str:
    if torch._C._functorch.is_functorch_wrapped_tensor(leaf):
        return "in one of the mapped instances"
    at = (~leaf.detach().isfinite()).nonzero()[0].tolist()
    place = f"batch {at[0]}, step {at[1]}" if drives.is_timed(leaf) else f"index {at}"
    return f"first at {place}: {leaf.detach()[tuple(at)].item()}"
