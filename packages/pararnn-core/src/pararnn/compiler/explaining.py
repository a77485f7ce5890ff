"""What becomes of the step of a cell, for a reader: whether it compiles, what it reads, and which engines can serve it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from pararnn.cell import Cell, check_cell
from pararnn.compiler.catalogue import Compiled, compiled
from pararnn.compiler.engine import Engine
from pararnn.compiler.engines import engines
from pararnn.compiler.serving import obstacles
from pararnn.compiler.storages import short
from pararnn.errors import CellError, sentence
from pararnn.layers import ParaRNN
from pararnn.selection import Request
from pararnn.solver.api import cell_problem
from pararnn.solver.config import NewtonConfig
from pararnn.solver.problem import Problem
from pararnn.structures.diagonal import Diagonal


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Whether a step compiles; printed, it says so in sentences.

    Attributes:
        name: of the cell.
        dtype: of its states.
        compiled: the program and what it reads, None where the step cannot be compiled.
        obstacles: why it cannot, in sentences.
        others: why kernels would not solve it though it compiles, such as that it is linear; decoders use them all the same.
        engines: what each engine has against it on this machine, by name; nothing where it can serve.
        origins: where the tensors with the operands come from, in order.
    """

    name: str
    dtype: torch.dtype
    compiled: Compiled | None
    obstacles: tuple[str, ...]
    others: tuple[str, ...]
    engines: dict[str, tuple[str, ...]]
    origins: tuple[str, ...]

    @property
    def verdicts(self) -> dict[str, str]:
        """What is to be said of each engine."""
        return {name: "\n".join(found) or ("can serve" if self._is_served else "can serve other steps") for name, found in self.engines.items()}

    @cached_property
    def listing(self) -> str:
        """The program, each operand with where it comes from; empty where there is none."""
        return "" if self.compiled is None else self.compiled.program.listing(self.origins)

    @property
    def summary(self) -> str:
        """Whether it compiles, and why not: a line, and one more for each reason."""
        if self.compiled is None:
            first = f"The step of {self.name} cannot be compiled in {short(self.dtype)}:"
            return "\n".join((first, *(f"- {one}" for one in self.obstacles)))
        program = self.compiled.program
        first = f"The step of {self.name} compiles in {short(self.dtype)}: {_count(program.value.operations, 'operation')} on "
        return "\n".join((f"{first}{_count(program.kinds, 'operand')}.", *(f"No solve uses it: {one}." for one in self.others)))

    def __str__(self) -> str:
        return "\n".join((self.summary, *(f"{name}: {verdict}" for name, verdict in self.verdicts.items())))

    def serves(self, engine: str) -> bool:
        """Whether an engine that was asked can solve the cell on this machine."""
        return self._is_served and not self.engines[engine]

    @property
    def _is_served(self) -> bool:
        return self.compiled is not None and not self.others


def explained(cell: Any, x: Tensor, *, name: str = "", asked: Iterable[tuple[str, Engine]] | None = None) -> Explanation:
    """What becomes of the step of `cell` over `x`; engines that are `asked`, all of them if left out. Raises as `pararnn.compiler.explain`."""
    cell = cell_in(cell, name)
    problem = cell_problem(cell, x, NewtonConfig())
    candidates = [*(engines() if asked is None else asked)]
    own = {label: _of_engine(engine, problem) for label, engine in candidates}
    # A step of another structure has obstacles without end, none of which would help to take away.
    found = compiled(problem) if problem.structure is Diagonal else (OTHER.format(problem.structure.__name__),)
    is_compiled = isinstance(found, Compiled)
    return Explanation(
        name=name or type(cell).__name__,
        dtype=problem.initial.dtype,
        compiled=found if isinstance(found, Compiled) else None,
        obstacles=() if isinstance(found, Compiled) else found,
        others=_of_cell(problem, candidates, own) if is_compiled else (),
        engines=own,
        origins=_origins(found, problem) if isinstance(found, Compiled) else (),
    )


OTHER = "its structure is {}, and kernels are made of channelwise steps, whose structure is Diagonal"


def cell_in(module: Any, name: str = "") -> nn.Module:
    """The cell that `module` is or holds.

    Raises:
        CellError: it holds none, or more than one, or a member is missing.
    """
    told = f"{name} gives" if name else "this is"
    if isinstance(module, ParaRNN):
        if len(module.layers) != 1:
            raise CellError(
                f"{told} a ParaRNN of {len(module.layers)} layers, each with a step of its own; give one of them, such as model.layers[0]"
            )
        return module.layers[0]
    # A record may name a layer around a cell. What has nearly all of a cell is told what it lacks.
    inner = getattr(module, "cell", None)
    cell = inner if isinstance(inner, Cell) and not isinstance(module, Cell) else module
    if not isinstance(cell, nn.Module) or not hasattr(cell, "step"):
        raise CellError(f"{told} a {type(module).__name__}, which neither is a cell nor holds one as .cell: there is no step to compile")
    check_cell(cell)
    return cell


def _request(engine: Engine, problem: Problem) -> Request:
    options = {"structure": problem.structure.__name__, "linear": problem.linear, "exact": problem.exact}
    return Request.of("solve", device=engine.device, dtype=problem.initial.dtype, needs_grad=True, options=options)


def _of_engine(engine: Engine, problem: Problem) -> tuple[str, ...]:
    """What an engine itself has against the cell: device, dtype, installation."""
    try:
        return engine.reasons(_request(engine, problem))
    except ImportError as error:
        return (f"it cannot be imported ({sentence(error)})",)


def _of_cell(problem: Problem, candidates: list[tuple[str, Engine]], own: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """What keeps every engine from solving a step that compiles."""
    found: dict[str, None] = {}
    for label, engine in candidates:
        try:
            found |= dict.fromkeys(one for one in obstacles(engine, _request(engine, problem)) if one not in own[label])
        except ImportError:
            continue
    return tuple(found)


def _origins(found: Compiled, problem: Problem) -> tuple[str, ...]:
    drive = problem.drive
    if isinstance(drive, Tensor):
        leaves = ["drive"]
    else:
        names = [f"drive.{name}" for name in drive._fields] if hasattr(drive, "_fields") else [f"drive[{index}]" for index in range(len(drive))]
        leaves = [name for name, leaf in zip(names, drive, strict=True) if leaf is not None]
    read = zip(found.captured, found.paths, strict=True)
    return (*leaves, *(f"self.{name}" if path[:1] == ((".", "__self__"),) else name for name, path in read))


def _count(found: Iterable[Any], what: str) -> str:
    count = len([*found])
    return f"{count} {what}{'' if count == 1 else 's'}"
