"""`pararnn compile`: can the step of a cell be made into a kernel, by which engine, and what does the kernel look like?

Exit status 1 when the step cannot be compiled, or an engine was named that cannot serve it here.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import click
import torch
from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax

from pararnn.cli.cells import cell_named
from pararnn.cli.plugins import titled_table
from pararnn.compiler.engine import Engine
from pararnn.compiler.engines import engine_named, engines
from pararnn.compiler.explaining import Explanation, explained
from pararnn.compiler.storages import short
from pararnn.errors import CellError, ParaRNNError
from pararnn.examples import told


@click.command(name="compile")
@click.argument("name")
@click.option("--show", is_flag=True, help="Print the program and the sources of the kernels.")
@click.option("--engine", help="Ask this engine only.")
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(["float32", "float64"]), help="In which the cell computes.")
@click.option("--json", "json_only", is_flag=True, help="Print JSON and nothing else on stdout.")
@click.pass_context
def compile_(ctx: click.Context, name: str, show: bool, engine: str | None, dtype: str, json_only: bool) -> None:
    """Say whether the step of the cell NAME can be made into a kernel, and why not.

    NAME is an installed cell, taken as in its example, or module:attribute: a cell, a class called with (input_size, state_size), or a function that
    returns a cell or (cell, x). The current directory is importable.
    """
    asked = [*engines()] if engine is None else [(engine, engine_named(engine))]
    cell, x = cell_named(name, getattr(torch, dtype))
    try:
        found = explained(cell, x, name=name, asked=asked)
    except ParaRNNError:
        raise
    except Exception as error:
        raise CellError(f"the cell {name} fails ({told(error)}); mend that first") from error
    sources = _sources(found, asked) if show else {}
    if json_only:
        click.echo(json.dumps(_document(found, sources), indent=2))
    else:
        _print(found, sources, asked, show=show)
    ctx.exit(0 if found.compiled is not None and (engine is None or found.serves(engine)) else 1)


def _sources(found: Explanation, asked: list[tuple[str, Engine]]) -> dict[str, str]:
    """The text of the kernels, by engine; none of one that is not installed."""
    sources = {}
    for name, engine in asked if found.compiled is not None else ():
        try:
            sources[name] = engine.source(found.compiled.program)  # type: ignore[union-attr]
        except ImportError:
            continue
    return sources


def _document(found: Explanation, sources: dict[str, str]) -> dict[str, Any]:
    document: dict[str, Any] = {"cell": found.name, "dtype": short(found.dtype), "compiles": found.compiled is not None}
    if found.compiled is not None:
        program = found.compiled.program
        document |= {
            "key": program.key,
            "operands": [kind.name.lower() for kind in program.kinds],
            "origins": [
                origin for origin, count in zip(found.origins, program.parts or (1,) * len(program.kinds), strict=True) for _ in range(count)
            ],
            "captured": list(found.compiled.captured),
            "operations": len(program.value.operations),
        }
    else:
        document["obstacles"] = list(found.obstacles)
    reasons = {name: [*own, *found.obstacles, *found.others] for name, own in found.engines.items()}
    texts = {name: {"source": source} for name, source in sources.items()}
    return document | {"engines": {name: {"serves": not told, "reasons": told} | texts.get(name, {}) for name, told in reasons.items()}}


def _print(found: Explanation, sources: dict[str, str], asked: list[tuple[str, Engine]], *, show: bool) -> None:
    console = Console()
    console.print(found.summary, markup=False, highlight=False, soft_wrap=True)
    table = titled_table("Engines", "engine", "verdict")
    for name, verdict in found.verdicts.items():
        table.add_row(name, escape(verdict))
    console.print(table)
    if show and found.compiled is not None:
        _show(console, "program", found.listing, "text")
        for name, engine in asked:
            if name in sources:
                _show(console, name, sources[name], engine.language)


def _show(console: Console, title: str, text: str, language: str) -> None:
    """In colours on a terminal; unchanged where it is piped to something."""
    if console.is_terminal:
        console.rule(title)
        console.print(Syntax(text, language))
    else:
        sys.stdout.write(f"{text}\n")
