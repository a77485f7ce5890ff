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

from pararnn import findings
from pararnn.cli.c_compiler import compiler_found
from pararnn.cli.doctor_report import Backends, Choices, Diagnosis, chosen, show, verdict
from pararnn.cli.environment import devices, environment
from pararnn.cli.plugins import as_json
from pararnn.distributions import import_name_rivals
from pararnn.findings import Finding
from pararnn.probing import probe
from pararnn.provenance import Entry
from pararnn.registry import Registry, installed
from pararnn.selection import Considered, Request, clear_cache, consider
from pararnn.specs import BackendSpec


@click.command()
@click.option("--json", "json_only", is_flag=True, help="Print JSON and nothing else on stdout.")
@click.option("--quick", is_flag=True, help="Show the outcomes of the last run instead of trying the backends again.")
@click.option("--timeout", default=180.0, show_default=True, help="Seconds that one backend may take.")
@click.pass_context
def doctor(ctx: click.Context, json_only: bool, quick: bool, timeout: float) -> None:
    """Try every backend on this machine, each in a child process.

    Takes a minute or so, more where kernels are compiled for the first time; --quick takes seconds.
    """
    errors = Console(stderr=True)
    registry = installed()
    backends = tuple(entry for op in registry.backend_ops for entry in registry.backends(op).values())
    if not quick:
        _keep(_try_all(backends, timeout=timeout, console=errors, silent=json_only), errors)
    clear_cache(registry)
    works, compiler = compiler_found()
    facts = environment() | {"C compiler": compiler}
    diagnosis = Diagnosis(
        facts=facts,
        plugins=tuple(registry.plugins),
        backends=backends,
        outcomes={entry: finding for entry in backends if (finding := findings.read().get(findings.key(entry)))},
        choices=_choices(registry, devices(facts)),
        rivals=import_name_rivals(),
        compiles=works,
    )
    if json_only:
        click.echo(json.dumps(_document(diagnosis), indent=2))
    else:
        show(diagnosis, Console())
    ctx.exit(1 if diagnosis.broken or diagnosis.crashed else 0)


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


def _choices(registry: Registry, device_types: Iterable[str]) -> Choices:
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


def _document(diagnosis: Diagnosis) -> dict[str, object]:
    return {
        "environment": dict(diagnosis.facts),
        "plugins": [as_json(record) for record in diagnosis.plugins],
        "backends": [_backend_json(entry, diagnosis.outcomes.get(entry)) for entry in diagnosis.backends],
        "selection": [_choice_json(request, considered) for request, considered in diagnosis.choices],
        "import_name_rivals": list(diagnosis.rivals),
        "healthy": diagnosis.is_healthy,
        "verdict": verdict(diagnosis),
    }


def _backend_json(entry: Entry[BackendSpec], finding: Finding | None) -> dict[str, object]:
    identity = {"op": entry.spec.op, "backend": entry.name, "distribution": entry.provenance.distribution}
    return identity | (asdict(finding) if finding else {"outcome": "not tried", "detail": "", "seconds": 0.0})


def _choice_json(request: Request, considered: tuple[Considered, ...]) -> dict[str, object]:
    candidates = [{"backend": one.label, "priority": one.backend.spec.priority, "reasons": list(one.reasons)} for one in considered]
    asked = {"op": request.op, "device": request.device, "dtype": request.dtype, "request": str(request)}
    return asked | {"chosen": chosen(considered), "candidates": candidates}
