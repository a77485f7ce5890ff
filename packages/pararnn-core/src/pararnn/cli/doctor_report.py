"""What `pararnn doctor` prints for people: short tables of names, every reason once in full width below them, and a sentence at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pararnn.cli.plugins import COLOURS as STATES
from pararnn.cli.plugins import titled_table
from pararnn.distributions import CORE
from pararnn.findings import Finding, Outcome
from pararnn.plugins import PluginRecord, PluginState
from pararnn.provenance import Entry
from pararnn.selection import Considered, Request
from pararnn.specs import BackendSpec

COLOURS = {Outcome.OK: "green", Outcome.UNAVAILABLE: "dim", Outcome.FAILED: "yellow", Outcome.CRASHED: "red"}
Backends = tuple[Entry[BackendSpec], ...]
Choices = list[tuple[Request, tuple[Considered, ...]]]


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything that was found out.

    Attributes:
        facts: of the environment, by label.
        plugins: what is installed.
        backends: every one of every operation.
        outcomes: of the trials; without those that were not tried.
        choices: for each operation and device a request, and what `auto` considers for it.
        rivals: distributions that overwrite files of this one.
        compiles: whether there is a compiler for C.
    """

    facts: Mapping[str, str]
    plugins: tuple[PluginRecord, ...]
    backends: Backends
    outcomes: Mapping[Entry[BackendSpec], Finding]
    choices: Choices
    rivals: tuple[str, ...]
    compiles: bool

    @property
    def broken(self) -> list[PluginRecord]:
        """Plugins that could not be loaded."""
        return [record for record in self.plugins if record.state is PluginState.BROKEN]

    @property
    def crashed(self) -> Backends:
        """Backends whose trial crashed."""
        return tuple(entry for entry, finding in self.outcomes.items() if finding.outcome is Outcome.CRASHED)

    @property
    def is_healthy(self) -> bool:
        """Whether nothing crashed, is broken or overwritten."""
        return not (self.broken or self.crashed or self.rivals)


def chosen(considered: tuple[Considered, ...]) -> str | None:
    """What `auto` takes; None where nothing serves."""
    return next((one.label for one in considered if not one.reasons), None)


def show(diagnosis: Diagnosis, console: Console) -> None:
    """Print `diagnosis`."""
    for table in (_environment(diagnosis.facts), _plugins(diagnosis.plugins), _trials(diagnosis), _choices(diagnosis.choices)):
        console.print(table, "")
    if told := _reasons(diagnosis):
        console.print("Why not the others", style="italic")
        for reason, whom in told.items():
            console.print(f"- {_listed(whom)}: {reason}", markup=False, highlight=False)
        console.print()
    for advice in _advice(diagnosis):
        console.print(advice, style="bold", markup=False, highlight=False)
    console.print(verdict(diagnosis), style="bold", markup=False, highlight=False)


def verdict(diagnosis: Diagnosis) -> str:
    """One sentence: is all well, what works, and are steps compiled."""
    outcomes = Counter(finding.outcome for finding in diagnosis.outcomes.values())
    faults = (
        (len(diagnosis.rivals), "other distribution overwrites its files", "other distributions overwrite its files"),
        (len(diagnosis.broken), "plugin is broken", "plugins are broken"),
        (len(diagnosis.crashed), "backend crashed", "backends crashed"),
    )
    found = [f"{count} {one if count == 1 else several}" for count, one, several in faults if count]
    start = f"pararnn needs repair ({', '.join(found)})" if found else "pararnn is well"
    parts = [f"{outcomes[Outcome.OK]} of {len(diagnosis.backends)} backends work on this machine"]
    parts += [f"{outcomes[Outcome.FAILED]} failed when tried"] if outcomes[Outcome.FAILED] else []
    untried = len(diagnosis.backends) - len(diagnosis.outcomes)
    parts += [f"{untried} were not tried (run it without --quick)"] if untried else []
    unserved = sorted({request.op for request, considered in diagnosis.choices if chosen(considered) is None})
    parts += [f"nothing serves {', '.join(unserved)}"] if unserved else []
    if diagnosis.compiles:
        parts.append("steps of cells are compiled on the CPU")
    else:
        parts.append("steps of cells run in plain PyTorch on the CPU, for want of a C compiler")
    return f"{start}: {', '.join(parts[:-1])}, and {parts[-1]}."


def _environment(facts: Mapping[str, str]) -> Table:
    table = titled_table("Environment", "what", "found", whole=("what",))
    for label, text in facts.items():
        table.add_row(label, escape(text))
    return table


def _plugins(records: Iterable[PluginRecord]) -> Table:
    """Only what became of each: `pararnn plugins` lists what they offer."""
    table = titled_table("Plugins", "plugin", "from", "state", "detail", whole=("plugin", "from", "state"))
    for record in records:
        table.add_row(escape(record.name), escape(str(record.provenance)), f"[{STATES[record.state]}]{record.state}[/]", escape(record.detail))
    return table


def _trials(diagnosis: Diagnosis) -> Table:
    """One row a trial: operations that share a probe were tried together."""
    trials: dict[tuple[str, str], list[Entry[BackendSpec]]] = {}
    for entry in diagnosis.backends:
        trials.setdefault((entry.provenance.distribution, entry.spec.probe), []).append(entry)
    table = titled_table("Backends, tried in child processes", "backend", "for", "outcome", "seconds", whole=("backend", "outcome", "seconds"))
    for sharing in trials.values():
        finding = diagnosis.outcomes.get(sharing[0])
        result = ("not tried", "") if finding is None else (f"[{COLOURS[finding.outcome]}]{finding.outcome}[/]", f"{finding.seconds:.1f}")
        table.add_row(
            escape(f"{_listed(dict.fromkeys(entry.name for entry in sharing))}\n{sharing[0].provenance.distribution}"),
            escape(", ".join(entry.spec.op for entry in sharing)),
            *result,
        )
    return table


def _choices(choices: Choices) -> Table:
    columns = ("operation", "device", "dtype", "auto takes")
    table = titled_table("What 'auto' takes for a small request with gradient", *columns, whole=columns)
    for request, considered in choices:
        table.add_row(escape(request.op), request.device, escape(request.dtype), escape(chosen(considered) or "nothing"))
    return table


def _reasons(diagnosis: Diagnosis) -> dict[str, dict[str, None]]:
    """Every reason against a backend, of its trial or for `auto`, with those that it holds for."""
    places: dict[str, dict[str, dict[str, None]]] = {}
    for reason, backend, op in (*_of_trials(diagnosis), *_of_choices(diagnosis.choices)):
        places.setdefault(reason, {}).setdefault(backend, {})[op] = None
    return {reason: {f"{backend} for {_listed(ops)}": None for backend, ops in whom.items()} for reason, whom in places.items()}


def _of_choices(choices: Choices) -> Iterator[tuple[str, str, str]]:
    for request, considered in choices:
        for one in considered:
            for reason in one.reasons:
                yield reason, one.label, request.op


def _of_trials(diagnosis: Diagnosis) -> Iterator[tuple[str, str, str]]:
    """Reasons of trials that the choices do not have already, as those do in which one obstacle was found."""
    known = {(reason, label, op) for reason, label, op in _of_choices(diagnosis.choices)}
    for entry, finding in diagnosis.outcomes.items():
        told = [part for part in finding.detail.split("; ") if part and (part, entry.name, entry.spec.op) not in known]
        if told:
            yield "; ".join(told), entry.name, entry.spec.op


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _advice(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.rivals:
        yield (
            f"{' and '.join(diagnosis.rivals)} installs a package named pararnn too, and the two overwrite each other's files: "
            f"pip uninstall {' '.join(diagnosis.rivals)}, then pip install --force-reinstall --no-deps {CORE}."
        )
    if diagnosis.broken:
        yield f"{len(diagnosis.broken)} broken plugin(s): the table of plugins has the cause; PARARNN_STRICT=1 shows the traceback in Python."
    for entry in diagnosis.crashed:
        yield f"{entry.qualified_name} crashed for {entry.spec.op}: 'auto' avoids it; after a repair run `pararnn doctor` again."
