"""Names of everything that is installed, each with the record behind it and who offers it.

The registry of the process is built on first use, once. A name that several distributions offer stays reachable as
`distribution:name`; the bare name raises.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import pararnn
from pararnn.distributions import Candidate, discover
from pararnn.errors import AmbiguousNameError, PluginError, UnknownNameError
from pararnn.plugins import PluginRecord, PluginState, load_plugins
from pararnn.provenance import Entry
from pararnn.specs import BackendSpec, CellSpec, CommandSpec, LearnerSpec, OpSpec, Spec, StructureSpec

S = TypeVar("S", bound=Spec, covariant=True)
T = TypeVar("T", bound=Spec)

# Names of the families that are developed with the core, for an error that says what to install.
HOMES = {
    "ParaCfC": "pararnn-cfc",
    "CfC": "pararnn-cfc",
    "WiredCfC": "pararnn-cfc",
    "S4": "pararnn-s4",
    "S4D": "pararnn-s4",
    "ParaS4D": "pararnn-s4",
    "NANODECell": "pararnn-nanode",
    "COLA": "pararnn-cola",
}


class Catalogue(Mapping[str, Entry[S]], Generic[S]):
    """The entries of one kind by name; iterates over names that can be asked for (qualified where the bare one is ambiguous)."""

    def __init__(self, kind: str, entries: Iterable[Entry[S]], *, hint: Callable[[str], str], missing: str = "") -> None:
        self.kind = kind
        self._hint, self._missing = hint, missing
        self._by_name: dict[str, list[Entry[S]]] = {}
        for entry in entries:
            self._by_name.setdefault(entry.name, []).append(entry)
        self._by_qualified_name = {entry.qualified_name: entry for same in self._by_name.values() for entry in same}
        self._by_label = {self.label(entry): entry for same in self._by_name.values() for entry in same}

    def label(self, entry: Entry[Spec]) -> str:
        """The shortest name that means `entry` and nothing else."""
        return entry.qualified_name if len(self._by_name[entry.name]) > 1 else entry.name

    def __getitem__(self, name: str) -> Entry[S]:
        """The entry called `name`, bare or as `distribution:name`.

        Raises:
            UnknownNameError: nobody offers it.
            AmbiguousNameError: several distributions do, and the name is bare.
        """
        return self.find(name)

    def find(self, name: str, *, besides: tuple[str, ...] = ()) -> Entry[S]:
        """The same; the error compares `name` with `besides` too, other names that could be meant."""
        if name in self._by_qualified_name:
            return self._by_qualified_name[name]
        found = self._by_name.get(name, [])
        if len(found) == 1:
            return found[0]
        if found:
            choices = [entry.qualified_name for entry in found]
            raise AmbiguousNameError(
                f"{len(found)} distributions offer the {self.kind} {name!r}; ask for {' or '.join(map(repr, choices))}", name=name, choices=choices
            )
        raise UnknownNameError(
            f"no installed plugin offers a {self.kind} named {name!r}; {self._next_step(name, besides)}", name=name, kind=self.kind
        )

    def _next_step(self, name: str, besides: tuple[str, ...]) -> str:
        here = {*self, *besides}
        folded = {label.casefold(): label for label in (*HOMES, *self, *besides) if label in here or self._hint(label)}
        close = [folded[match] for match in difflib.get_close_matches(name.casefold(), folded, n=3)]
        hint = self._hint(name) or next((f"{match!r}: {self._hint(match)}" for match in close if match not in here), "")
        matches = [match for match in close if match in here]
        told = f"close: {', '.join(map(repr, matches))}" if matches else ""
        steps = [hint, told, "" if hint else self._missing, "`pararnn plugins` lists what is installed"]
        return "; ".join(step for step in steps if step)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name or name in self._by_qualified_name

    def get(self, name: str, default: Any = None) -> Any:
        """The entry called `name`, or `default` when nobody offers it; an ambiguous name still raises."""
        if name not in self:
            return default
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_label)

    def __len__(self) -> int:
        return len(self._by_label)

    def __repr__(self) -> str:
        return f"<{len(self)} of kind {self.kind}: {', '.join(self)}>"


class Registry:
    """Everything that a set of plugins offers.

    `memo` is a scratch space for what is derived from these entries alone and dies with them (`pararnn.selection` keeps its choices there).
    """

    def __init__(self, plugins: Iterable[PluginRecord]) -> None:
        self.plugins = tuple(plugins)
        self.memo: dict[Any, Any] = {}
        self.cells = self._catalogue("cell", CellSpec)
        self.structures = self._catalogue("structure", StructureSpec)
        self.ops = self._catalogue("op", OpSpec)
        self.learners = self._catalogue("learner", LearnerSpec)
        self.commands = self._catalogue("command", CommandSpec)
        by_op: dict[str, list[Entry[BackendSpec]]] = {op: [] for op in self.ops}
        for entry in self._entries(BackendSpec):
            by_op.setdefault(entry.spec.op, []).append(entry)
        self._backends = {op: Catalogue(f"backend of {op}", entries, hint=self._hint) for op, entries in by_op.items()}

    @classmethod
    def of(cls, candidates: Iterable[Candidate], *, environ: Mapping[str, str] | None = None) -> Registry:
        """The registry of the given entry points; the environment variables are read from `environ` (default: this process's)."""
        reserved = frozenset((*pararnn.PUBLIC, "cells"))
        return cls(load_plugins(candidates, environ=os.environ if environ is None else environ, reserved=reserved))

    def backends(self, op: str) -> Catalogue[BackendSpec]:
        """The backends of `op`; empty when nobody offers one."""
        return self._backends.get(op) or Catalogue(f"backend of {op}", (), hint=self._hint)

    @property
    def backend_ops(self) -> tuple[str, ...]:
        """Every operation that somebody offers or serves, sorted."""
        return tuple(sorted(self._backends))

    def public_name(self, name: str) -> Entry[CellSpec] | Entry[LearnerSpec]:
        """The cell or else the learner behind `pararnn.<name>`; raises as `cells[name]` does, where names of the core may have been meant too."""
        if name in self.learners and name not in self.cells:
            return self.learners[name]
        return self.cells.find(name, besides=(*pararnn.__all__, *self.learners))

    def unusable(self) -> str:
        """How many plugins could not be loaded, and their names, in a clause; empty where all could, but for those that were left out on purpose."""
        names = [record.name for record in self.plugins if record.state in (PluginState.BROKEN, PluginState.INCOMPATIBLE)]
        return f"{len(names)} plugin{'s' if len(names) > 1 else ''} could not be loaded: {', '.join(names)}" if names else ""

    def _entries(self, kind: type[T]) -> Iterator[Entry[T]]:
        for record in self.plugins:
            for entry in record.entries:
                if isinstance(entry.spec, kind):
                    yield Entry(entry.spec, entry.provenance)

    def _catalogue(self, label: str, kind: type[T]) -> Catalogue[T]:
        return Catalogue(label, self._entries(kind), hint=self._hint, missing=self.unusable())

    def _hint(self, name: str) -> str:
        home = HOMES.get(name)
        if home is None:
            return ""
        records = [record for record in self.plugins if record.provenance.distribution == home]
        unusable = [str(record) for record in records if record.state is not PluginState.LOADED]
        if records:
            return "; ".join(unusable)
        return f"{home} does: pip install {home}"


class _Process:
    """The registry of this process; the lock lets one thread build it while the others wait."""

    lock = threading.RLock()
    registry: Registry | None = None
    building = False


def installed() -> Registry:
    """The registry of what is installed, built on first use.

    Raises:
        PluginError: a plugin cannot be loaded and `PARARNN_STRICT` is set, or a hook module asks for the registry while it is built.
    """
    registry = _Process.registry
    if registry is not None:
        return registry
    with _Process.lock:
        if _Process.registry is None:
            if _Process.building:
                raise PluginError("a hook module asked for what is installed while it was itself being loaded; import the package that has it")
            _Process.building = True
            try:
                _Process.registry = Registry.of(discover())
            finally:
                _Process.building = False
        return _Process.registry


def reset() -> None:
    """Forget what is installed; the next use discovers plugins anew. For tests and for installs into a running process."""
    with _Process.lock:
        _Process.registry = None


@contextlib.contextmanager
def using(registry: Registry) -> Iterator[Registry]:
    """Let `registry` be the one of this process inside the block (in every thread); for tests."""
    with _Process.lock:
        before, _Process.registry = _Process.registry, registry
    try:
        yield registry
    finally:
        with _Process.lock:
            _Process.registry = before
