"""The compiled step of a problem, remembered by its identity."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from pararnn.compiler.columns import apart, fitted
from pararnn.compiler.identity import StepIdentity
from pararnn.compiler.places import Path, fetch, places
from pararnn.compiler.program import Kind, Program
from pararnn.compiler.surroundings import is_looked_at
from pararnn.compiler.tracing import CARRIES, trace_places
from pararnn.errors import CompilationError
from pararnn.solver import again
from pararnn.solver import drive as drives

if TYPE_CHECKING:
    from pararnn.solver.problem import Problem


@dataclass(frozen=True, eq=False)
class Compiled:
    """A program, and how its operands are found in a problem.

    Attributes:
        program: what engines make kernels of; the same object for equal programs.
        captured: names of the parameters that hold operands, after the leaves of the drive.
        paths: how to come to each of them from the step.
    """

    program: Program
    captured: tuple[str, ...]
    paths: tuple[Path, ...]
    _carry: torch.dtype

    def operands(self, problem: Problem) -> list[Tensor]:
        """What the step reads now, on the graph, in the shapes that engines take."""
        tensors = self.tensors(problem)
        return apart(self.program.parts, tensors) if self.program.parts else tensors

    def tensors(self, problem: Problem) -> list[Tensor]:
        """The leaves of the drive and the parameters that hold these operands, one or several side by side."""
        drive = problem.drive
        return self.gathered(problem.step, [drive] if isinstance(drive, Tensor) else [leaf for leaf in drive if leaf is not None])

    def gathered(self, step: Any, leaves: Iterable[Tensor]) -> list[Tensor]:
        """The same for `step` and the leaves of a drive."""
        found = [*leaves, *(fetch(step, path) for path in self.paths)]
        return [fitted(tensor, self._carry, flat=kind is Kind.CHANNEL) for kind, tensor in zip(self.program.tensors, found, strict=True)]


_memory: OrderedDict[StepIdentity, Compiled | tuple[str, ...]] = OrderedDict()
_programs: OrderedDict[str, Program] = OrderedDict()
_turn = threading.RLock()
REMEMBERED = 256


def compiled(problem: Problem) -> Compiled | tuple[str, ...]:
    """The compiled step of `problem`, or every obstacle to it, a sentence each.

    A step whose identity is sure is traced once. Another is traced each time, and what is made of equal programs is shared all the same.
    """
    if is_looked_at():
        return ("it is solved inside of a step that is being traced",)
    identity = problem.identity
    found = _memory.get(identity)
    if found is not None:
        return found
    with _turn:
        found = _trace(problem)
        if identity.is_sure:
            _memory[identity] = found
            _limit(_memory)
    return found


def forget() -> None:
    """Trace every step anew when it is next asked for."""
    with _turn:
        _memory.clear()
        _programs.clear()
        again.forget()


def _trace(problem: Problem) -> Compiled | tuple[str, ...]:
    leaves = drives.leaves(problem.drive)
    timed = tuple(leaf is not None and drives.is_timed(leaf) for leaf in leaves)
    with _disable_current_modes():
        state = problem.initial.new_empty(1, problem.state_size)
        one = [leaf.new_empty((1, *leaf.shape[2:])) if runs else leaf for leaf, runs in zip(leaves, timed, strict=True)]
    drive = one[0] if isinstance(problem.drive, Tensor) else drives.rebuild(problem.drive, one)
    try:
        program, read = trace_places(problem.step, state, drive, places(problem.step), timed=timed)
    except CompilationError as error:
        return error.obstacles
    device = problem.initial.device
    elsewhere = [f"{place.name} is on {place.tensor.device}" for place in read if place.tensor.device != device]
    elsewhere += [f"leaf {index} of the drive is on {leaf.device}" for index, leaf in enumerate(leaves) if leaf is not None and leaf.device != device]
    if elsewhere:
        return tuple(f"{what}, and kernels read what is on {device} with the states" for what in elsewhere)
    program = _programs.setdefault(program.key, program)
    _limit(_programs)
    # A step that changes what it reads is no function of its arguments, and one trace does not tell what the next run would do.
    if problem.identity != StepIdentity.of(problem) and problem.identity.is_sure:
        return ("the step changes attributes of its cell, or globals, that it also reads; it must be a pure function",)
    return Compiled(program, tuple(place.name for place in read), tuple(place.path for place in read), CARRIES[state.dtype])


def _limit(memory: OrderedDict[StepIdentity, Compiled | tuple[str, ...]] | OrderedDict[str, Program]) -> None:
    while len(memory) > REMEMBERED:
        memory.popitem(last=False)
