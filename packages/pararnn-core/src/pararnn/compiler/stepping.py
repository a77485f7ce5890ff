"""One step of one cell, in place: by the kernel that an engine makes of it, or by the step as it was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pararnn.cell import optional
from pararnn.compiler.catalogue import Compiled, compiled
from pararnn.compiler.engine import Engine
from pararnn.compiler.engines import engines, find_engine
from pararnn.errors import BackendError, ConfigError
from pararnn.selection import Request
from pararnn.solver import drive as drives
from pararnn.solver.api import cell_problem, without_autocast
from pararnn.solver.asking import ask, facts_of_cell
from pararnn.solver.config import NewtonConfig
from pararnn.solver.problem import Problem
from pararnn.structures.diagonal import Diagonal

# Moves the state of a cell on by a sample, in place, and says whether it could.
OwnStep: TypeAlias = Callable[[Any, Tensor, Tensor], bool]


class CellStep:
    """Moves the state of `cell` on by one sample.

    The engine is the one that `config.backend` names, or for `"auto"` that of the device; where it cannot serve, or `config.backend` names something
    else, the step runs as it was written. The first call decides. Weights are read at each call; a cell that changed otherwise needs a new object.

    Attributes:
        backend: what steps: the name of an engine, or `"torch"`; empty before the first step.
        obstacles: why no engine does, in sentences.
    """

    def __init__(self, cell: Any, config: NewtonConfig) -> None:
        self._cell, self._config = cell, config
        self._kernel: tuple[Engine, Compiled, Problem] | None = None
        self._own: OwnStep | None = None
        self.backend = ""
        self.obstacles: tuple[str, ...] = ()

    def __call__(self, x: Tensor, state: Tensor) -> None:
        """Overwrite `state` `(batch, state)` with the next one, from a sample `x` `(batch, 1, input)`.

        Raises:
            ConfigError: the states of the cell have another dtype by now than `state`.
            BackendError: the configuration names an engine, and it cannot serve.
        """
        by_kernel = not torch.is_autocast_enabled(state.device.type)
        if by_kernel and not self.backend:
            self._find_own(x, state)
        if by_kernel and self._own is not None and self._own(self._cell, x, state):
            return
        if by_kernel and self._kernel is not None:
            engine, compiled_step, problem = self._kernel
            _by_kernel(engine, compiled_step, replace(problem, drive=self._cell.drive(x)), state)
            return
        problem = cell_problem(self._cell, x, self._config, h0=state)
        if problem.initial.data_ptr() != state.data_ptr():
            raise ConfigError(
                f"the states of {type(self._cell).__name__} are {problem.initial.dtype} by now, and were {state.dtype} when this decoder was made; "
                "make a new one"
            )
        with without_autocast(state):
            if not self.backend or self._own is not None:
                self._own, self._kernel = None, self._find_kernel(problem)
                self.backend = "torch" if self._kernel is None else self._kernel[0].name
            if self._kernel is None:
                state.copy_(problem.step(state, next(drives.unbind(problem.drive, dim=1))))
            else:
                _by_kernel(*self._kernel[:2], problem, state)

    def _find_own(self, x: Tensor, state: Tensor) -> None:
        """Note the step of a backend that was made for this very cell, where there is one."""
        ops = tuple(optional(self._cell, "solve_ops", ()))
        facts = facts_of_cell(self._cell, x, self._config, packed=False) if ops else None
        selection = None if facts is None or facts.dtype != state.dtype else ask(ops, facts, self._config.backend)
        self._own = None if selection is None else getattr(selection.implementation, "step", None)
        if selection is not None and self._own is not None:
            self.backend = selection.backend.name

    def _find_kernel(self, problem: Problem) -> tuple[Engine, Compiled, Problem] | None:
        """Who steps, with what; None where no engine serves, and `obstacles` then says why."""
        engine = self._find_engine(problem)
        if engine is None:
            return None
        found = compiled(problem)
        if isinstance(found, Compiled):
            return engine, found, problem
        self._refuse(found)
        return None

    def _find_engine(self, problem: Problem) -> Engine | None:
        asked, device = self._config.backend, problem.initial.device.type
        # A decoder is made for many steps, so `auto` compiles for one where a single solve would not be worth it.
        engine = next((one for _, one in engines() if one.device == device), None) if asked == "auto" else find_engine(asked)
        if engine is None:
            self.obstacles = (f"{'its device has no engine' if asked == 'auto' else f'NewtonConfig(backend={asked!r}) names no engine'}",)
            return None
        found = engine.reasons(Request.of("solve", device=problem.initial.device, dtype=problem.initial.dtype))
        if problem.structure is not Diagonal:
            found += (f"engines compile channelwise steps, whose structure is Diagonal; this one is {problem.structure.__name__}",)
        if found:
            self._refuse(found)
            return None
        return engine

    def _refuse(self, obstacles: tuple[str, ...]) -> None:
        self.obstacles = obstacles
        if self._config.backend != "auto":
            raise BackendError(
                f"backend {self._config.backend!r} was asked for and cannot step {type(self._cell).__name__}; use 'auto':\n" + "\n".join(obstacles),
                obstacles=obstacles,
            )


def _by_kernel(engine: Engine, step: Compiled, problem: Problem, state: Tensor) -> None:
    pairs = zip(step.program.kinds, step.operands(problem), strict=True)
    engine.step(step.program, state, [operand[:, 0] if kind.is_timed else operand for kind, operand in pairs], state)
