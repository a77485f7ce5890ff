"""Checks on what a problem claims of itself, made where it is solved, because a false claim would show as a wrong number and nothing else."""

from __future__ import annotations

import collections
import itertools
import re
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from pararnn.cell import Drive, Step
from pararnn.errors import CellError, InputError, ParaRNNError, StructureError, sentence
from pararnn.solver import drive as drives
from pararnn.solver.lanes import any_true, largest
from pararnn.solver.problem import Problem
from pararnn.structures.base import push_forward

# Disagreement allowed between the declared Jacobian and the derivative of the step, relative to its largest entry.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2, torch.bfloat16: 0.2, torch.float16: 0.1}

# What PyTorch says where tensors do not go together.
OF_FORM = re.compile(r"siz|shape|dim|broadcast|expand|dtype|device|out of range|out of bounds|to unpack")
# A cell is checked in its first solves, and in one of so many after that.
ALWAYS, EACH = 4, 8
# How often each cell was solved, by what it claims: the same step may be solved under another structure, or by another formula.
_solves: weakref.WeakKeyDictionary[Any, collections.Counter[tuple[object, ...]]] = weakref.WeakKeyDictionary()


def check_structure(problem: Problem) -> None:
    """Compare what the cell declares with what its step does, every few solves, along one direction at a few times.

    Raises:
        CellError: the step fails on the shapes it is given, changes shape or dtype of the state, writes into it, is random, gives another result
            for a state alone than beside others, or another value than `linearize` says.
        StructureError: the declared Jacobian is not its derivative: the structure is too narrow, an analytic Jacobian is wrong, or a cell that is
            declared linear is not.
    """
    if problem.length == 0 or problem.rows == 0:
        return
    turn = _count(problem)
    if turn == 1:
        check_one_step(problem.step, problem.initial, problem.drive)
    if not problem.exact or (turn > ALWAYS and turn % EACH):
        return
    with torch.no_grad():
        state, drive, wave = _some(problem.initial, problem.drive, problem.length, turn)
        _check_step(problem, state, drive)
        # A direction without symmetry: one of equal entries would not see couplings that cancel.
        _check_slope(problem, state, drive, direction=wave.flip(-1) + 0.5)


def check_one_step(step: Step, initial: Tensor, drive: Drive) -> None:
    """Take a step from where a problem starts, `initial` `(rows, 1, state)`, with the first samples of its drive; random numbers go on as before.

    Raises:
        CellError: the step fails on the shapes it is given, or gives something else than states of this shape and dtype. Mistakes in Python are
            raised as they are; what a step objects to for other reasons is for the solve to raise.
    """
    times = min(2, drives.batch_and_length(drive)[1])
    devices = [initial.device] if initial.is_cuda else []
    with torch.no_grad(), torch.autocast(initial.device.type, enabled=False), torch.random.fork_rng(devices):
        try:
            state = initial[:2, :1].detach().repeat(1, times, 1)
            some = drives.map_timed(lambda leaf: leaf[:2, :times].detach(), drive)
            _next(step, state, some, type(getattr(step, "__self__", step)).__name__)
        except (RuntimeError, ValueError, IndexError, AssertionError):
            return


def keeps(value: Any, state: Tensor) -> bool:
    """Whether `value`, which a step made of `state`, is a state too."""
    return isinstance(value, Tensor) and value.shape == state.shape and value.dtype == state.dtype


def _some(initial: Tensor, drive: Drive, length: int, turn: int) -> tuple[Tensor, Drive, Tensor]:
    """A few states, their drive, and the wave `(rows, times, state)` by which they differ from the initial ones; none of it on the graph."""
    rows, times, size = min(2, initial.shape[0]), min(8, length), initial.shape[-1]
    # Spread over the sequence, and elsewhere each time: a coupling may depend on the inputs.
    spread = torch.arange(times, device=initial.device) * length // times
    wave = torch.arange(rows * times * size, device=initial.device).reshape(rows, times, size).cos().to(initial.dtype)
    some = drives.map_timed(lambda leaf: leaf[:rows, (spread + turn - 1) % length].detach(), drive)
    return initial[:rows, :1].detach() + 0.1 * wave, some, wave


def _next(step: Step, state: Tensor, drive: Drive, name: str) -> Tensor:
    """The states that `step` makes of states `(rows, times, state)`."""
    try:
        value = step(state, drive)
    except (RuntimeError, IndexError, ValueError) as error:
        # What else a step objects to is its own affair.
        if isinstance(error, (ParaRNNError, torch.cuda.OutOfMemoryError)) or not OF_FORM.search(str(error)):
            raise
        raise CellError(
            f"the step of {name}, whose state_size is {state.shape[-1]}, fails on states {tuple(state.shape)}, (batch, time, state), with "
            f"{_told(drive)}: {sentence(error)}; {_advice(step, state, drive)}"
        ) from error
    if keeps(value, state):
        return value
    if not isinstance(value, Tensor):
        found = "None, as without a return" if value is None else f"a {type(value).__name__}"
        raise CellError(f"the step of {name} returned {found}; it must return the next state, one tensor, and readout makes outputs of it")
    found, wanted = (f"{tuple(tensor.shape)} in {tensor.dtype}" for tensor in (value, state))
    advice = "is its drive of the state's dtype?" if value.shape == state.shape else _advice(step, state, drive)
    raise CellError(f"the step of {name} makes a state {found} from one {wanted} with {_told(drive)}; it must keep shape and dtype: {advice}")


def _told(drive: Drive) -> str:
    """The leaves of a drive by name and shape."""
    shapes = [f"{tuple(leaf.shape)}" for leaf in drives.leaves(drive)]
    if isinstance(drive, Tensor):
        return f"a drive {shapes[0]}"
    names = getattr(drive, "_fields", range(len(shapes)))
    return f"drive leaves {', '.join(f'{field} {shape}' for field, shape in zip(names, shapes, strict=True))}"


def _advice(step: Step, state: Tensor, drive: Drive) -> str:
    """What to look at, for a step that makes no states of `state` `(rows, times, state)`."""
    cell = getattr(step, "__self__", None)
    weights = itertools.chain(cell.named_parameters(), cell.named_buffers()) if isinstance(cell, nn.Module) else ()
    if elsewhere := [f"{name} is on {weight.device}" for name, weight in weights if weight.device != state.device]:
        return f"{', '.join(elsewhere)}, and the states are on {state.device}: bring them together"
    single = state[:, 0]
    try:
        is_flat = keeps(step(single, drives.map_timed(lambda leaf: leaf[:, 0], drive)), single)
    except Exception:
        is_flat = False
    if is_flat:
        return f"it takes states {tuple(single.shape)}, so it counts dimensions from the front; count them from the end, as dim=-1 does"
    return "compare the last sizes of the drive's leaves and of the weights with state_size"


def _check_step(problem: Problem, state: Tensor, drive: Drive) -> None:
    """The step is a pure function that treats each lead index apart."""
    name = type(problem.cell).__name__
    given = state.clone()
    reached = _next(problem.step, given, drive, name)
    if _differ(given, state):
        raise CellError(f"the step of {name} writes into the state it is given; build a new tensor instead (no names that end in _)")
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
