"""`pararnn compile`: can the step of a cell be made into a kernel, by which engine, and what does the kernel look like?

Exit status 1 when the step cannot be compiled, or an engine was named that cannot serve it here.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import click
import torch
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from torch import nn

from pararnn.cell import Cell
from pararnn.cli.plugins import titled_table
from pararnn.compiler.catalogue import Compiled, compiled
from pararnn.compiler.engine import Engine
from pararnn.compiler.engines import engine_named, engines
from pararnn.compiler.posed import PosedStep
from pararnn.compiler.serving import obstacles
from pararnn.errors import CellError, sentence
from pararnn.registry import installed
from pararnn.selection import Request
from pararnn.solver.api import cell_problem
from pararnn.solver.config import NewtonConfig
from pararnn.solver.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """An engine by its name, why it cannot serve the cell on this machine, and its sources and their language where they were asked for."""

    engine: str
    obstacles: tuple[str, ...]
    source: str | None = None
    language: str = ""


@click.command(name="compile")
@click.argument("name")
@click.option("--show", is_flag=True, help="Print the program and the sources of the kernels.")
@click.option("--engine", help="Ask this engine only.")
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(["float32", "float64"]), help="In which the cell computes.")
@click.option("--json", "json_only", is_flag=True, help="Print JSON and nothing else on stdout.")
@click.pass_context
def compile_(ctx: click.Context, name: str, show: bool, engine: str | None, dtype: str, json_only: bool) -> None:
    """Say whether the step of the cell NAME, as in its example, can be made into a kernel, and why not."""
    asked = _engines(engine)
    problem = _example(name, dtype)
    found = compiled(problem)
    verdicts = [_verdict(label, one, problem, found, show=show) for label, one in asked]
    ok = isinstance(found, Compiled) and (engine is None or not verdicts[0].obstacles)
    if json_only:
        click.echo(json.dumps(_document(name, dtype, found, verdicts), indent=2))
    else:
        _print(name, dtype, found, verdicts, show=show)
    ctx.exit(0 if ok else 1)


def _engines(name: str | None) -> list[tuple[str, Engine]]:
    """The engine `name`, or all."""
    return [*engines()] if name is None else [(name, engine_named(name))]


def _example(name: str, dtype: str) -> Problem:
    """The problem of the example of the cell `name`, in `dtype`."""
    module, x = installed().cells[name].spec.load_example()(2, 8, seed=0)
    # A record may name a layer around a cell.
    cell = module if isinstance(module, Cell) else getattr(module, "cell", None)
    if not isinstance(cell, Cell) or not isinstance(cell, nn.Module):
        raise CellError(
            f"the example of {name} is a {type(module).__name__}, which neither is a cell nor holds one as .cell: there is no step to compile"
        )
    kind = getattr(torch, dtype)
    return cell_problem(cell.to(kind), x.to(kind), NewtonConfig())


def _verdict(name: str, engine: Engine, problem: Problem, found: Compiled | tuple[str, ...], *, show: bool) -> Verdict:
    options = {"structure": problem.structure.__name__, "linear": problem.linear, "exact": problem.exact, "step": PosedStep.of(problem)}
    try:
        reasons = obstacles(engine, Request.of("solve", device=engine.device, dtype=problem.initial.dtype, needs_grad=True, options=options))
        source = engine.source(found.program) if show and isinstance(found, Compiled) else None
    except ImportError as error:
        return Verdict(engine=name, obstacles=(f"it cannot be imported ({sentence(error)})",))
    return Verdict(engine=name, obstacles=reasons, source=source, language=engine.language)


def _document(name: str, dtype: str, found: Compiled | tuple[str, ...], verdicts: list[Verdict]) -> dict[str, Any]:
    document: dict[str, Any] = {"cell": name, "dtype": dtype, "compiles": isinstance(found, Compiled)}
    if isinstance(found, Compiled):
        kinds = [kind.name.lower() for kind in found.program.kinds]
        document |= {"key": found.program.key, "operands": kinds, "captured": list(found.captured), "operations": len(found.program.value.operations)}
    else:
        document["obstacles"] = list(found)
    engines = {one.engine: {"serves": not one.obstacles, "reasons": list(one.obstacles)} for one in verdicts}
    for one in verdicts:
        if one.source is not None:
            engines[one.engine]["source"] = one.source
    return document | {"engines": engines}


def _print(name: str, dtype: str, found: Compiled | tuple[str, ...], verdicts: list[Verdict], *, show: bool) -> None:
    console = Console()
    if isinstance(found, Compiled):
        counts = f"{len(found.program.value.operations)} operations on {len(found.program.kinds)} operands"
        console.print(f"The step of {name} compiles in {dtype}: {counts}.", markup=False, highlight=False)
    else:
        console.print(f"The step of {name} cannot be compiled:", markup=False, highlight=False)
        for obstacle in found:
            console.print(f"- {obstacle}", markup=False, highlight=False)
    table = titled_table("Engines", "engine", "verdict")
    for one in verdicts:
        table.add_row(one.engine, escape("\n".join(one.obstacles) or "can serve"))
    console.print(table)
    if show and isinstance(found, Compiled):
        _show(console, "program", str(found.program), "text")
        for one in verdicts:
            if one.source is not None:
                _show(console, one.engine, one.source, one.language)


def _show(console: Console, title: str, text: str, language: str) -> None:
    """In colours on a terminal; unchanged where it is piped to something."""
    if console.is_terminal:
        console.rule(title)
        console.print(Syntax(text, language))
    else:
        sys.stdout.write(f"{text}\n")
