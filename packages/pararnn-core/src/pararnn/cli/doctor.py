"""`pararnn doctor`: what works on this machine, tried in child processes, and what to do about the rest.

Exit status 1 when a backend crashed or a plugin is broken. Outcomes are kept (`pararnn.findings`): `auto` avoids what crashed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import asdict, replace

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from pararnn import findings
from pararnn.cli.environment import devices, environment
from pararnn.cli.plugins import as_json, plugin_table, titled_table
from pararnn.distributions import CORE, import_name_rivals
from pararnn.findings import Finding, Outcome
from pararnn.plugins import PluginState
from pararnn.probing import probe
from pararnn.provenance import Entry
from pararnn.registry import Registry, installed
from pararnn.selection import Considered, Request, clear_cache, consider
from pararnn.specs import BackendSpec

COLOURS = {Outcome.OK: "green", Outcome.UNAVAILABLE: "dim", Outcome.FAILED: "yellow", Outcome.CRASHED: "red"}
Backends = tuple[Entry[BackendSpec], ...]


@click.command()
@click.option("--json", "json_only", is_flag=True, help="Print JSON and nothing else on stdout.")
@click.option("--quick", is_flag=True, help="Show the outcomes of the last run instead of trying the backends again.")
@click.option("--timeout", default=180.0, show_default=True, help="Seconds that one backend may take.")
@click.pass_context
def doctor(ctx: click.Context, json_only: bool, quick: bool, timeout: float) -> None:
    """Try every backend on this machine, each in a child process."""
    errors = Console(stderr=True)
    registry = installed()
    backends = tuple(entry for op in registry.backend_ops for entry in registry.backends(op).values())
    if not quick:
        _keep(_try_all(backends, timeout=timeout, console=errors, silent=json_only), errors)
    clear_cache(registry)
    outcomes = {entry: finding for entry in backends if (finding := findings.read().get(findings.key(entry)))}
    facts = environment()
    choices = _choices(registry, devices(facts))
    rivals = import_name_rivals()
    broken = [record for record in registry.plugins if record.state is PluginState.BROKEN]
    crashed = [entry for entry, finding in outcomes.items() if finding.outcome is Outcome.CRASHED]
    if json_only:
        document = {
            "environment": facts,
            "plugins": [as_json(record) for record in registry.plugins],
            "backends": [_backend_json(entry, outcomes.get(entry)) for entry in backends],
            "selection": [_choice_json(request, considered) for request, considered in choices],
            "import_name_rivals": list(rivals),
            "healthy": not (broken or crashed or rivals),
        }
        click.echo(json.dumps(document, indent=2))
    else:
        console = Console()
        for table in (_environment_table(facts), plugin_table(registry.plugins), _backend_table(backends, outcomes), _choice_table(choices)):
            console.print(table, "")
        for advice in _advice(rivals, len(broken), crashed):
            console.print(advice, style="bold", markup=False, highlight=False)
    ctx.exit(1 if broken or crashed else 0)


def _try_all(backends: Backends, *, timeout: float, console: Console, silent: bool) -> dict[str, Finding]:
    """The finding of every backend by key; operations that share a probe share its child process."""
    probes: dict[tuple[str, str], list[Entry[BackendSpec]]] = {}
    for entry in backends:
        probes.setdefault((entry.provenance.distribution, entry.spec.probe), []).append(entry)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    found: dict[str, Finding] = {}
    with Progress(*columns, console=console, transient=True, disable=silent) as progress:
        task = progress.add_task("trying backends", total=len(probes))
        for sharing in probes.values():
            progress.update(task, description=f"trying {escape(sharing[0].name)} for {escape(sharing[0].spec.op)}")
            finding = probe(sharing[0], timeout=timeout)
            found |= {findings.key(entry): finding for entry in sharing}
            progress.advance(task)
    return found


def _keep(found: dict[str, Finding], console: Console) -> None:
    try:
        findings.write(found)
    except (OSError, RuntimeError) as error:
        raise click.ClickException(
            f"outcomes cannot be kept ({error}), so 'auto' would not avoid what crashed; point XDG_CACHE_HOME to a folder that can be written"
        ) from error


def _choices(registry: Registry, device_types: Iterable[str]) -> list[tuple[Request, tuple[Considered, ...]]]:
    """For each operation and device a small request, with what `auto` considers for it."""
    requests = [_request(registry, op, device) for op in registry.backend_ops for device in device_types]
    return [(request, consider(registry.backends(request.op), request)) for request in requests]


def _request(registry: Registry, op: str, device: str) -> Request:
    """What a small call of `op` asks: the first one of its example, else that of a sequence."""
    offers = [entry for entry in registry.ops.values() if entry.name == op]
    for entry in offers:
        # What is wrong with an example, `pararnn verify` reports; here the backends are asked anyway, and torch may be what does not work.
        with contextlib.suppress(Exception):
            if entry.spec.example:
                from pararnn.conformance.op_examples import calls

                return replace(calls(entry, entry.spec.dtype)[0].request, device=device, needs_grad=True)
    dtype = offers[0].spec.dtype if offers else "float32"
    return Request.of(op, device=device, dtype=dtype, needs_grad=True, rows=2, time=64, state=4)


def _chosen(considered: tuple[Considered, ...]) -> str | None:
    return next((one.label for one in considered if not one.reasons), None)


def _backend_json(entry: Entry[BackendSpec], finding: Finding | None) -> dict[str, object]:
    identity = {"op": entry.spec.op, "backend": entry.name, "distribution": entry.provenance.distribution}
    return identity | (asdict(finding) if finding else {"outcome": "not tried", "detail": "", "seconds": 0.0})


def _choice_json(request: Request, considered: tuple[Considered, ...]) -> dict[str, object]:
    candidates = [{"backend": one.label, "priority": one.backend.spec.priority, "reasons": list(one.reasons)} for one in considered]
    asked = {"op": request.op, "device": request.device, "dtype": request.dtype, "request": str(request)}
    return asked | {"chosen": _chosen(considered), "candidates": candidates}


def _environment_table(facts: dict[str, str]) -> Table:
    table = titled_table("Environment", "what", "found")
    for label, text in facts.items():
        table.add_row(label, escape(text))
    return table


def _backend_table(backends: Backends, outcomes: dict[Entry[BackendSpec], Finding]) -> Table:
    table = titled_table("Backends, tried in child processes", "operation", "backend", "from", "outcome", "seconds", "detail")
    for entry in backends:
        finding = outcomes.get(entry)
        if finding is None:
            result = ("not tried", "", "")
        else:
            result = (f"[{COLOURS[finding.outcome]}]{finding.outcome}[/]", f"{finding.seconds:.1f}", escape(finding.detail))
        table.add_row(escape(entry.spec.op), escape(entry.name), escape(str(entry.provenance)), *result)
    return table


def _choice_table(choices: list[tuple[Request, tuple[Considered, ...]]]) -> Table:
    title = "What 'auto' takes for a small request with gradient"
    table = titled_table(title, "operation", "device", "dtype", "auto takes", "why not the others")
    for request, considered in choices:
        reasons = "\n".join(f"{one.label}: {reason}" for one in considered for reason in one.reasons)
        table.add_row(escape(request.op), request.device, escape(request.dtype), escape(_chosen(considered) or "nothing"), escape(reasons))
    return table


def _advice(rivals: tuple[str, ...], broken: int, crashed: list[Entry[BackendSpec]]) -> Iterable[str]:
    if rivals:
        yield (
            f"{' and '.join(rivals)} installs a package named pararnn too, and the two overwrite each other's files: "
            f"pip uninstall {' '.join(rivals)}, then pip install --force-reinstall --no-deps {CORE}."
        )
    if broken:
        yield f"{broken} broken plugin(s): the table of plugins has the cause; PARARNN_STRICT=1 shows the traceback in Python."
    for entry in crashed:
        yield f"{entry.qualified_name} crashed for {entry.spec.op}: 'auto' avoids it; after a repair run `pararnn doctor` again."
