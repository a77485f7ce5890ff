"""Checks of what a cell says about itself: structure, analytic Jacobian, linearity, bounds, guess, budget, fused kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pararnn.conformance.comparison import difference
from pararnn.conformance.samples import at, sized, visited
from pararnn.conformance.tolerances import tolerance
from pararnn.errors import ConformanceError
from pararnn.registry import installed
from pararnn.solver.problem import analytic_form
from pararnn.structures.base import Structure, push_forward, unit_tangents

BATCH, TIME = 2, 3
LENGTHS = (1, 2, 7, 100, 4096, 1_000_000)


def check_structure_holds_the_jacobian(cell: Any, x: Tensor) -> str | None:
    """The declared structure, applied to `step`, gives the whole Jacobian that autograd finds entry by entry."""
    if not getattr(cell, "exact_jacobian", True):
        return "the cell says exact_jacobian = False, so its structure need not hold the whole Jacobian"
    x = sized(x, BATCH, TIME)
    state, drive = visited(cell, x), at(cell.drive(x), lambda leaf: leaf)
    truth = true_jacobian(cell, state, drive)
    declared = cell.structure.of(lambda inner: cell.step(inner, drive), state)
    matrices = _dense(declared, "structure.of(step, state)", truth)
    if (how := difference(matrices, truth, "gradients")) is not None:
        name = cell.structure.__name__
        raise ConformanceError(
            f"the structure is wrong: {_coupling(matrices, truth, name) or f'{name} and autograd differ {how}'}; declare a structure that holds "
            "every coupling (Dense always does), or set exact_jacobian = False to use this one as an approximation"
        )
    return None


def check_analytic_jacobian(cell: Any, x: Tensor) -> str | None:
    """`jacobian` and `linearize`, where the cell has them, give the derivative of `step`."""
    if analytic_form(cell, "auto") is None:
        return "the cell has no formula for its Jacobian, so the structure differentiates step"
    x = sized(x, BATCH, TIME)
    state, drive = visited(cell, x), at(cell.drive(x), lambda leaf: leaf)
    truth = true_jacobian(cell, state, drive)
    with torch.no_grad():
        value = cell.step(state, drive)
        if hasattr(cell, "linearize"):
            linear_value, jacobian = cell.linearize(state, drive)
            if (how := difference(linear_value, value)) is not None:
                raise ConformanceError(f"linearize and step give states that differ {how}; linearize returns (step(state, drive), its derivative)")
            _check_formula(cell, "linearize", jacobian, truth)
        if hasattr(cell, "jacobian"):
            _check_formula(cell, "jacobian", cell.jacobian(state, drive), truth)
    return None


def check_linear_claim(cell: Any, x: Tensor) -> str | None:
    """Where the cell says `is_linear`, `step` is affine in the state."""
    if not getattr(cell, "is_linear", False):
        return "the cell does not say is_linear"
    x = sized(x, BATCH, TIME)
    first, drive = visited(cell, x), at(cell.drive(x), lambda leaf: leaf)
    second = torch.randn_like(first)
    with torch.no_grad():
        together = cell.step(first + second, drive) + cell.step(torch.zeros_like(first), drive)
        apart = cell.step(first, drive) + cell.step(second, drive)
    if (how := difference(together, apart)) is not None:
        raise ConformanceError(
            f"is_linear is a false claim: step(a + b) + step(0) and step(a) + step(b) differ {how}, so step is not affine in the state "
            "and one scan does not solve it; remove is_linear"
        )
    return None


def check_state_bounds(cell: Any, x: Tensor) -> str | None:
    """No state inside the declared `state_bounds` is led out of them, and the initial state lies inside."""
    bounds = getattr(cell, "state_bounds", None)
    if bounds is None:
        return "the cell declares no state_bounds"
    low, high = bounds
    if not low < high:
        raise ConformanceError(f"state_bounds is ({low}, {high}); it is (low, high) with low < high")
    _inside(cell.initial_state(2), cell.initial_state(2), bounds, "the initial state")
    draws = 64
    x = sized(x, draws, TIME)
    drive = at(cell.drive(x), lambda leaf: leaf)
    state = cell.initial_state(draws).unsqueeze(1).expand(draws, TIME, cell.state_size)
    spread = low + (high - low) * torch.rand(state.shape, dtype=state.dtype, device=state.device)
    # Unbounded sides are tried a little way out; corners are where a bound is broken first.
    spread = torch.nan_to_num(spread, nan=0.0, posinf=10.0, neginf=-10.0).clamp(low, high)
    corners = torch.where(torch.rand_like(spread) < 0.5, spread.amin(), spread.amax())
    with torch.no_grad():
        for start in (spread, corners):
            _inside(cell.step(start, drive), start, bounds, "step")
    return None


def check_guess(cell: Any, x: Tensor) -> str | None:
    """`guess(drive, initial)` gives a finite trajectory of the right shape."""
    if not hasattr(cell, "guess"):
        return "the cell has no guess"
    for length in (1, 7):
        inputs = sized(x, BATCH, length)
        initial = cell.initial_state(BATCH)
        guess = cell.guess(cell.drive(inputs), initial)
        if tuple(guess.shape) != (BATCH, length, cell.state_size) or guess.dtype != initial.dtype:
            raise ConformanceError(
                f"guess gives {tuple(guess.shape)} of {guess.dtype}; it must be states (batch, time, state) = ({BATCH}, {length}, {cell.state_size}) "
                f"of {initial.dtype}"
            )
        if not bool(guess.isfinite().all()):
            raise ConformanceError("guess gives states that are not finite; a guess may be bad, but every number must be finite")
    return None


def check_newton_iters(cell: Any, x: Tensor) -> str | None:
    """`newton_iters(length)` is an int of at least 1 for short and long sequences."""
    if not hasattr(cell, "newton_iters"):
        return "the cell has no newton_iters"
    for length in LENGTHS:
        budget = cell.newton_iters(length)
        if not isinstance(budget, int) or isinstance(budget, bool) or budget < 1:
            raise ConformanceError(f"newton_iters({length}) is {budget!r}; it must be an int of at least 1")
    return None


def check_solve_ops(cell: Any, x: Tensor) -> str | None:
    """Every name in `solve_ops` is an operation that some installed plugin offers or serves."""
    ops = tuple(getattr(cell, "solve_ops", ()))
    if not ops:
        return "the cell names no solve_ops"
    known = installed().backend_ops
    unknown = [op for op in ops if op not in known]
    if unknown:
        raise ConformanceError(f"solve_ops names {', '.join(unknown)}, which no installed plugin offers; there are {', '.join(known)}")
    return None


def true_jacobian(cell: Any, state: Tensor, drive: Any) -> Tensor:
    """The derivative of `step` at each of `state` `(batch, time, state)`, one state at a time: `(batch, time, state, state)`."""
    rows = []
    for row in range(state.shape[0]):
        for time in range(state.shape[1]):
            piece = at(drive, lambda leaf, row=row, time=time: leaf[row : row + 1, time])  # type: ignore[misc]

            def step(inner: Tensor, piece: Any = piece) -> Tensor:
                following: Tensor = cell.step(inner.unsqueeze(0), piece)[0]
                return following

            here = state[row, time]
            rows.append(_complex_jacobian(step, here) if here.is_complex() else torch.autograd.functional.jacobian(step, here))
    matrices: Tensor = torch.stack(rows).unflatten(0, tuple(state.shape[:2]))
    return matrices


def _complex_jacobian(step: Callable[[Tensor], Tensor], state: Tensor) -> Tensor:
    """The complex derivative of `step` at one complex state; torch.func.jacfwd refuses complex inputs.

    Raises:
        ConformanceError: there is none, because `step` looks at real parts, imaginary parts or conjugates.
    """
    units = unit_tangents(state, state.shape[-1])
    matrix = torch.stack([push_forward(step, state, unit)[1] for unit in units], dim=-1)
    turned = torch.stack([push_forward(step, state, 1j * unit)[1] for unit in units], dim=-1)
    if (how := difference(turned, 1j * matrix, "gradients")) is not None:
        raise ConformanceError(
            f"step is not holomorphic: its derivatives along a direction, times i, and along i times it differ {how}, so no complex map is its "
            "Jacobian; carry real and imaginary parts as real channels"
        )
    return matrix


def _check_formula(cell: Any, name: str, jacobian: Any, truth: Tensor) -> None:
    matrices = _dense(jacobian, name, truth)
    if not isinstance(jacobian, cell.structure):
        raise ConformanceError(f"{name} gives a {type(jacobian).__name__}, but the cell's structure is {cell.structure.__name__}; return that")
    if not getattr(cell, "exact_jacobian", True) or (how := difference(matrices, truth, "gradients")) is None:
        return
    missing = _coupling(matrices, truth, type(jacobian).__name__)
    raise ConformanceError(
        f"the analytic Jacobian is wrong: {missing or f'the derivative of step and that of {name} differ {how} (batch, time, row, column)'}; "
        f"mend {name}, or remove it and the structure differentiates step"
    )


def _dense(jacobian: Any, what: str, truth: Tensor) -> Tensor:
    if not isinstance(jacobian, Structure):
        raise ConformanceError(f"{what} gives a {type(jacobian).__name__} where a Structure is wanted")
    # A formula may leave out dimensions along which the maps are equal.
    return jacobian.to_dense().expand(truth.shape) if jacobian.to_dense().ndim <= truth.ndim else jacobian.to_dense()


def _coupling(matrices: Tensor, truth: Tensor, structure: str) -> str | None:
    """The largest derivative of `step` that the structure has no place for, in words."""
    size, held = truth.abs().flatten(0, -3).amax(0), (matrices != 0).flatten(0, -3).any(0)
    missing = torch.where(held, 0.0, size)
    if float(missing.max()) <= tolerance(truth.dtype, "gradients")["atol"]:
        return None
    row, column = divmod(int(missing.argmax()), missing.shape[-1])
    return f"channel {row} of the next state depends on channel {column} of the state (derivative {missing.max():.2g}), which {structure} leaves out"


def _inside(found: Tensor, start: Tensor, bounds: tuple[float, float], what: str) -> None:
    low, high = bounds
    slack = tolerance(found.dtype, "states")["atol"] * max(1.0, *(abs(bound) for bound in bounds if abs(bound) < float("inf")), 0.0)
    outside = (torch.relu(low - found) + torch.relu(found - high)).nan_to_num(nan=float("inf"))
    worst = int(outside.argmax())
    if float(outside.flatten()[worst]) > slack:
        raise ConformanceError(
            f"state_bounds = ({low}, {high}) do not hold: {what} leads from {start.flatten()[worst]:.4g} to {found.flatten()[worst]:.4g} in channel "
            f"{worst % found.shape[-1]}; the solver would cut that off, so widen the bounds or remove them"
        )
