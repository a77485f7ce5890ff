"""A recurrence to be solved: the step, the drive of the whole sequence, and where it starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from pararnn.cell import Drive, Linearize, Step, optional
from pararnn.errors import CellError
from pararnn.scans.segments import Offsets
from pararnn.solver import drive as drives
from pararnn.structures.base import Structure

if TYPE_CHECKING:
    from pararnn.compiler.catalogue import Compiled
    from pararnn.compiler.identity import StepIdentity


@dataclass(frozen=True, kw_only=True)
class Problem:
    """`h[t] = step(h[t-1], drive[t])` over whole sequences.

    Attributes:
        step: the recurrence, `(*lead, state)` and the drive of a step to `(*lead, state)`.
        structure: the family that the Jacobians of `step` belong to.
        drive: leaves `(rows, time, ...)`, or fewer dimensions where they do not run along the sequence.
        initial: the states before the first step, `(rows, segments, state)`; one segment unless sequences are packed.
        offsets: where packed sequences begin and end, None without packing.
        analytic: value and Jacobian by the cell's own formula, None where the structure has to differentiate `step`.
        exact: whether `structure` holds the whole Jacobian.
        linear: whether `step` is affine in the state.
        bounds: a range that no state leaves, None where unknown.
        guess: states `(rows, time, state)` to start the iteration from, None to start from one step.
        budget: iterations that the cell expects to need, None where it does not say.
        cell: what identifies the step from one solve to the next (the module it belongs to).
        solve_ops: operations whose backends solve this very cell.
    """

    step: Step
    structure: type[Structure]
    drive: Drive
    initial: Tensor
    offsets: Offsets | None = None
    analytic: Linearize | None = None
    exact: bool = True
    linear: bool = False
    bounds: tuple[float, float] | None = None
    guess: Tensor | None = None
    budget: int | None = None
    cell: object = None
    solve_ops: tuple[str, ...] = ()

    @cached_property
    def identity(self) -> StepIdentity:
        """What decides how the step is compiled; see `pararnn.compiler.identity`."""
        from pararnn.compiler.identity import StepIdentity

        return StepIdentity.of(self)

    @cached_property
    def compiled(self) -> Compiled | tuple[str, ...]:
        """The compiled step, or every obstacle to it, a sentence each."""
        from pararnn.compiler.catalogue import compiled

        return compiled(self)

    @property
    def rows(self) -> int:
        """Sequences that lie side by side; 1 when they are packed."""
        return self.initial.shape[0]

    @cached_property
    def length(self) -> int:
        """Steps along time."""
        return drives.batch_and_length(self.drive)[1]

    @property
    def is_empty(self) -> bool:
        """Whether there is no step or no sequence."""
        return self.length == 0 or self.initial.shape[0] == 0 or self.initial.shape[1] == 0

    @property
    def state_size(self) -> int:
        """Channels of a state."""
        return self.initial.shape[-1]

    def linearize(self, state: Tensor, drive: Drive) -> tuple[Tensor, Structure]:
        """The next state and its derivative by `state`."""
        if self.analytic is not None:
            return self.analytic(state, drive)
        return self.structure.linearize(lambda inner: self.step(inner, drive), state)

    def value_and_constant_jacobian(self, states: Tensor) -> tuple[Tensor, Structure]:
        """The step at all times, from `states` `(rows, time, state)` before each, on the graph; and its Jacobians, off it."""
        # A narrow Jacobian shares most of its work with the step; the graph of a wide one would cost more than the step once more.
        if self.analytic is not None and self.structure.cost(self.state_size)[1] <= 2 * self.state_size:
            value, jacobian = self.analytic(states, self.drive)
            return value, jacobian.detach()
        with torch.no_grad():
            jacobian = self.linearize(states, self.drive)[1].detach()
        return self.step(states, self.drive), jacobian

    def detach(self) -> Self:
        """The same problem cut from the autograd graph (parameters inside `step` remain)."""
        guess = None if self.guess is None else self.guess.detach()
        return replace(self, drive=drives.map_leaves(Tensor.detach, self.drive), initial=self.initial.detach(), guess=guess)

    def last(self, states: Tensor) -> Tensor:
        """The final state of every sequence, `(sequences, state)`: of `states` `(rows, time, state)`, the initial one of empty sequences."""
        if self.offsets is None:
            return states[:, -1] if states.shape[1] else self.initial[:, 0]
        ends = torch.tensor(self.offsets, device=states.device)
        if not states.shape[1]:
            return self.initial[0]
        return torch.where((ends.diff() > 0).unsqueeze(1), states[0, (ends[1:] - 1).clamp(min=0)], self.initial[0])

    def along_time(self, per_segment: Tensor) -> Tensor:
        """`(rows, segments)` of a packed problem to each of its steps, `(rows, time)`."""
        counts = torch.tensor(self.offsets or (0, self.length), device=per_segment.device).diff()
        return per_segment.repeat_interleave(counts, dim=1, output_size=self.length)


def analytic_form(cell: Any, choice: str) -> Linearize | None:
    """The cell's own formula for value and Jacobian, None where there is none or it belongs to another `step`.

    A subclass that overrides `step` inherits a formula that no longer describes it; such a formula is not used.

    Raises:
        CellError: the choice is `"analytic"` and there is no formula that fits.
    """
    if choice == "autograd":
        return None
    if _fits(cell, "linearize"):
        form: Linearize = cell.linearize
        return form
    if _fits(cell, "jacobian"):
        # The one scan that solves a linear cell is differentiated through its maps.
        take = _on_graph if getattr(cell, "is_linear", False) else _constant
        return lambda state, drive: (cell.step(state, drive), take(cell.jacobian, state, drive))
    if choice == "analytic":
        raise CellError(
            f"{type(cell).__name__} has no analytic Jacobian for its step; "
            "define linearize or jacobian in the class that defines step, or use jacobian='auto'"
        )
    return None


def _on_graph(jacobian: Callable[[Tensor, Drive], Structure], state: Tensor, drive: Drive) -> Structure:
    return jacobian(state, drive)


def _constant(jacobian: Callable[[Tensor, Drive], Structure], state: Tensor, drive: Drive) -> Structure:
    with torch.no_grad():
        return jacobian(state, drive)


def _fits(cell: Any, name: str) -> bool:
    if (optional(cell, name) if isinstance(cell, torch.nn.Module) else getattr(cell, name, None)) is None:
        return False
    rank = {attribute: _rank(cell, attribute) for attribute in (name, "step")}
    return rank[name] <= rank["step"]


def _rank(cell: Any, name: str) -> int:
    """How far up an attribute is defined: 0 on the object itself, then along the method resolution order."""
    if name in vars(cell):
        return 0
    return next((rank for rank, owner in enumerate(type(cell).__mro__, start=1) if name in vars(owner)), len(type(cell).__mro__) + 1)
