"""Solves of a cell in a form that was solved before, without asking again what it is, who solves it and how.

To check a cell, pose the problem, name its facts, compare the step and look up the choice of a backend takes longer than a small solve. So after the
second solve of a cell it is remembered, by the cell and the form of its drive and initial state, what the implementation that was chosen says solves
the next one like it: its attribute `again`. What the user wrote runs as ever: `drive`, `initial_state`, `newton_iters`. Before a remembered solve is
used,

- nothing may be active that the backends would be told of: a compiler, a transform, a tracer, autocast;
- the cell must claim what it claimed (`Claims`), and its step be the same (`pararnn.compiler.watching`), both looked at after `drive` has run;
- class, shape, dtype and device of each leaf and of the initial state, the configuration, the gradient mode, the default dtype must be the same;
- choices must still be remembered: `clear_cache`, another registry, or the full memory end it.

Wherever one of these fails the solve takes the long way, which gives the result, or the error, that it always gives. Cells are held weakly.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from pararnn.cell import Drive, Step, check_cell
from pararnn.compiler.identity import StepIdentity
from pararnn.compiler.watching import Watch
from pararnn.registry import installed
from pararnn.scans.dispatch import only_numbers
from pararnn.solver.claims import Claims
from pararnn.solver.config import NewtonConfig
from pararnn.solver.posing import begin
from pararnn.solver.problem import Problem
from pararnn.solver.result import SolveResult

# Solves a problem of the same form: the step, the drive and its leaves, and the initial state `(rows, state)`.
Again: TypeAlias = Callable[[Step, Drive, tuple[Tensor, ...], Tensor], SolveResult]

# Forms of a cell; a stream of odd lengths must not grow the memory without end.
REMEMBERED = 256
PLAIN = (Tensor, nn.Parameter)


class Known:
    """A cell, what it claims and how its step looks, and what solves it in each form."""

    __slots__ = ("cell", "choices", "claims", "forms", "watch")

    def __init__(self, cell: Any, choices: object) -> None:
        self.cell = weakref.ref(cell, functools.partial(_dead, id(cell)))
        self.choices = choices
        self.claims: Claims | None = None
        self.watch: Watch | None = None
        # None for a form that was met once. The last says whether single steps are solved so too.
        self.forms: dict[tuple[Any, ...], tuple[Again, NewtonConfig, bool] | None] = {}

    def belongs_to(self, cell: Any) -> bool:
        """Whether `cell` is the one."""
        return self.cell() is cell

    def is_right(self, cell: Any, step: Any) -> bool:
        """Whether `cell`, which claims what it did, has the step that it had."""
        is_its_own = type(step) is types.MethodType and step.__self__ is cell and type(step.__func__) is types.FunctionType
        return is_its_own and self.watch is not None and self.watch.is_right(cell, step.__func__)


_memory: dict[int, Known] = {}


def attempt(
    cell: Any, x: Any, config: NewtonConfig, h0: Tensor | None, *, one_step: bool = False
) -> tuple[SolveResult | None, tuple[Drive, Tensor] | None]:
    """The solve of `cell` over `x` from `h0`, if one of this form is remembered and nothing stands against it; else None.

    In that case also the drive and the initial state, if they have been computed and the cell still claims what it did when it was checked. With
    `one_step` only implementations that are made for single steps too count.
    """
    known = _memory.get(id(cell))
    if known is None or known.claims is None or not known.belongs_to(cell) or type(x) is not Tensor or x.ndim != 3:
        return None, None
    if not only_numbers() or torch.is_autocast_enabled(x.device.type) or known.choices is not _choices():
        return None, None
    try:
        begun = drive, initial = begin(cell, x, h0=h0, cu_seqlens=None)
    except AttributeError:
        # A cell that lost a member is told so.
        check_cell(cell)
        raise
    if not known.claims.hold(cell):
        _memory.pop(id(cell), None)
        return None, None
    kind = type(drive)
    leaves: tuple[Any, ...] = (drive,) if kind is Tensor else tuple(drive) if isinstance(drive, tuple) else ()
    form = _form(kind, leaves, initial, config)
    found = None if form is None else known.forms.get(form)
    if found is None or (one_step and not found[2]):
        return None, begun
    step = cell.step
    if not known.is_right(cell, step):
        known.forms.clear()
        return None, begun
    if known.claims.counts:
        cell.newton_iters(x.shape[1])
    return found[0](step, drive, leaves, initial), begun


def remember(problem: Problem, config: NewtonConfig, implementation: Any) -> None:
    """Note that `implementation` solved `problem`, which its cell posed, under `config`; the second time, what it says will solve the next."""
    cell, choices = problem.cell, _choices()
    make = getattr(implementation, "again", None)
    if make is None or not isinstance(cell, nn.Module) or problem.is_empty or not problem.identity.is_sure:
        return
    known = _memory.get(id(cell))
    if known is None or not known.belongs_to(cell) or known.choices is not choices:
        known = _memory[id(cell)] = Known(cell, choices)
    kind = type(problem.drive)
    leaves: tuple[Any, ...] = (problem.drive,) if kind is Tensor else tuple(problem.drive)
    form = _form(kind, leaves, problem.initial.squeeze(1), config)
    if form is None:
        return
    if form not in known.forms:
        if len(known.forms) >= REMEMBERED:
            known.forms.clear()
        known.forms[form] = None
        return
    step: Any = problem.step
    if known.claims is None or not known.is_right(cell, step):
        known.forms.clear()
        known.watch = problem.identity.watch(step)
        known.claims = None if known.watch is None else Claims.of(cell)
        # What was looked at is what was solved.
        if known.claims is None or StepIdentity.of(problem) != problem.identity or not known.is_right(cell, step):
            return
    solves = make(problem, config)
    known.forms[form] = None if solves is None else (solves, config, bool(getattr(implementation, "steps_too", False)))


def forget() -> None:
    """Take the long way at the next solve of each cell."""
    _memory.clear()


def _form(kind: type, leaves: tuple[Tensor, ...], initial: Tensor, config: NewtonConfig) -> tuple[Any, ...] | None:
    """All that a choice follows from, besides the cell; None where tensors are of other classes than usual."""
    form: list[Any] = [id(config), torch.is_grad_enabled(), torch.get_default_dtype(), parametrize._cache_enabled, kind]
    for one in (initial, *leaves):
        if type(one) not in PLAIN:
            return None
        form += (one.shape, one.dtype, one.device)
    return tuple(form)


def _choices() -> object:
    """What lives as long as choices of backends are remembered."""
    memo = installed().memo
    return memo.get(__name__) or memo.setdefault(__name__, _Choices())


class _Choices:
    """One memory of choices."""


def _dead(address: int, _: object) -> None:
    _memory.pop(address, None)
