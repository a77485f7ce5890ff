"""`pararnn plugins`: what is installed, what became of it, and what it offers."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pararnn.plugins import PluginRecord, PluginState
from pararnn.registry import installed
from pararnn.specs import BackendSpec, CellSpec, CommandSpec, LearnerSpec, OpSpec, StructureSpec

KINDS = {
    CellSpec: "cells",
    StructureSpec: "structures",
    OpSpec: "ops",
    BackendSpec: "backends",
    LearnerSpec: "learners",
    CommandSpec: "commands",
}
COLOURS = {PluginState.LOADED: "green", PluginState.BROKEN: "red", PluginState.DISABLED: "dim", PluginState.INCOMPATIBLE: "yellow"}


def offers(record: PluginRecord) -> dict[str, list[str]]:
    """The names that a plugin offers, by kind; a backend is written `op=name`. Kinds it offers nothing of are left out."""
    names: dict[str, list[str]] = {}
    for spec in (entry.spec for entry in record.entries):
        name = f"{spec.op}={spec.name}" if isinstance(spec, BackendSpec) else spec.name
        names.setdefault(KINDS[type(spec)], []).append(name)
    return {kind: names[kind] for kind in KINDS.values() if kind in names}


def as_json(record: PluginRecord) -> dict[str, object]:
    """One plugin as plain data."""
    provenance = record.provenance
    return {
        "plugin": record.name,
        "distribution": provenance.distribution,
        "version": provenance.version,
        "state": str(record.state),
        "detail": record.detail,
        "offers": offers(record),
    }


def titled_table(title: str, *columns: str, whole: Collection[str] = ()) -> Table:
    """An empty table whose cells fold instead of losing their ends; columns named in `whole` hold names and leave it to the others to be narrow."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in whole)
    return table


def plugin_table(records: Iterable[PluginRecord]) -> Table:
    """The plugins as a table, one row each."""
    table = titled_table("Plugins", "plugin", "state", "offers", whole=("plugin", "state"))
    for record in records:
        lines = [f"[bold]{kind}[/bold] {escape(', '.join(names))}" for kind, names in offers(record).items()]
        lines += [escape(record.detail)] if record.detail else []
        state = f"[{COLOURS[record.state]}]{record.state}[/]"
        table.add_row(f"[bold]{escape(record.name)}[/bold]\n{escape(str(record.provenance))}", state, "\n".join(lines))
    return table


@click.command()
@click.option("--json", "json_only", is_flag=True, help="Print JSON and nothing else on stdout.")
def plugins(json_only: bool) -> None:
    """List installed plugins, their state and what they offer."""
    records = installed().plugins
    if json_only:
        click.echo(json.dumps([as_json(record) for record in records], indent=2))
    else:
        Console().print(plugin_table(records))
