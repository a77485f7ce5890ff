"""Loading of plugins: one at a time, so that a broken one costs its own offers and nothing else.

pluggy checks hooks against their specification; its own entry-point loader is not used, because it stops at the first import that
fails and drops duplicate names silently. Each plugin gets a manager of its own, so every fault has an owner.

Environment: `PARARNN_DISABLE_PLUGINS` and `PARARNN_PLUGINS` hold comma-separated names of entry points or distributions (left out;
loaded, and no others besides the core). `PARARNN_STRICT=1` raises `PluginError` where otherwise a warning is given.
"""

from __future__ import annotations

import difflib
import enum
import functools
import inspect
import logging
import os
import typing
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pluggy
from packaging.utils import canonicalize_name

from pararnn import hookspecs
from pararnn.distributions import CORE, Candidate, core_version, exclusion
from pararnn.errors import PluginError, PluginWarning, sentence
from pararnn.provenance import Entry, Provenance
from pararnn.specs import BackendSpec, Spec

logger = logging.getLogger(__name__)


class PluginState(enum.StrEnum):
    """What became of a plugin."""

    LOADED = "loaded"
    BROKEN = "broken"
    DISABLED = "disabled"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, kw_only=True)
class PluginRecord:
    """A plugin, what became of it and why, and what it offers (nothing unless it is loaded)."""

    provenance: Provenance
    state: PluginState
    detail: str = ""
    entries: tuple[Entry[Spec], ...] = ()
    cause: BaseException | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The name of the entry point."""
        return self.provenance.plugin

    def __str__(self) -> str:
        return f"plugin {self.name!r} of {self.provenance} is {self.state}: {self.detail}"


@functools.cache
def hooks() -> Mapping[str, type[Spec]]:
    """Every hook of `pararnn.hookspecs` with the type of record it returns."""
    marked = {name: function for name, function in vars(hookspecs).items() if hasattr(function, f"{hookspecs.ENTRY_POINT_GROUP}_spec")}
    return {name: typing.get_args(typing.get_type_hints(function)["return"])[0] for name, function in marked.items()}


def load_plugins(
    candidates: Iterable[Candidate], *, environ: Mapping[str, str] | None = None, core: str | None = None, reserved: frozenset[str] = frozenset()
) -> tuple[PluginRecord, ...]:
    """Import each candidate and collect what it offers; faults become records, each warned about once.

    `environ` and `core` (the version that plugins must accept) default to those of this process. `reserved` holds the public names of the
    core, which no cell or learner may take.

    Raises:
        PluginError: a plugin is broken or incompatible and `PARARNN_STRICT` is set.
    """
    environ = os.environ if environ is None else environ
    core = core_version() if core is None else core
    candidates = tuple(candidates)
    _warn_about_unmatched_names(candidates, environ)
    owners: dict[tuple[str, ...], str] = {}
    records = tuple(_record(candidate, environ, core, reserved, owners) for candidate in candidates)
    for record in records:
        if record.state not in (PluginState.BROKEN, PluginState.INCOMPATIBLE):
            continue
        if environ.get("PARARNN_STRICT", "0") not in ("", "0"):
            raise PluginError(f"{record} (PARARNN_STRICT is set)", record=record) from record.cause
        logger.warning("%s", record, exc_info=record.cause)
        warnings.warn(f"{record}; it was left out, `pararnn plugins` lists all", PluginWarning, stacklevel=2)
    return records


def _names(environ: Mapping[str, str], variable: str) -> frozenset[str]:
    return frozenset(canonicalize_name(part.strip()) for part in environ.get(variable, "").split(",") if part.strip())


def _is_named(candidate: Candidate, names: frozenset[str]) -> bool:
    return not names.isdisjoint((canonicalize_name(candidate.name), canonicalize_name(candidate.distribution)))


def _warn_about_unmatched_names(candidates: tuple[Candidate, ...], environ: Mapping[str, str]) -> None:
    known = sorted({canonicalize_name(name) for candidate in candidates for name in (candidate.name, candidate.distribution)})
    for variable in ("PARARNN_DISABLE_PLUGINS", "PARARNN_PLUGINS"):
        for name in sorted(_names(environ, variable).difference(known)):
            message = f"{variable} names {name!r}, which matches no plugin; there are {', '.join(known)}"
            logger.warning(message)
            warnings.warn(message, PluginWarning, stacklevel=3)


def _record(
    candidate: Candidate, environ: Mapping[str, str], core: str, reserved: frozenset[str], owners: dict[tuple[str, ...], str]
) -> PluginRecord:
    provenance = Provenance(distribution=candidate.distribution, version=candidate.version, plugin=candidate.name)
    if _is_named(candidate, _names(environ, "PARARNN_DISABLE_PLUGINS")):
        return PluginRecord(provenance=provenance, state=PluginState.DISABLED, detail="named in PARARNN_DISABLE_PLUGINS")
    allowed = _names(environ, "PARARNN_PLUGINS")
    if allowed and candidate.distribution != CORE and not _is_named(candidate, allowed):
        return PluginRecord(provenance=provenance, state=PluginState.DISABLED, detail="not named in PARARNN_PLUGINS")
    requirement = exclusion(candidate.requires, core)
    if requirement is not None:
        detail = f"it requires {requirement} and {CORE} {core} is running; pip install -U {candidate.distribution} {CORE}"
        return PluginRecord(provenance=provenance, state=PluginState.INCOMPATIBLE, detail=detail)
    try:
        entries = tuple(Entry(spec, provenance) for spec in _offers(candidate))
        _claim(entries, reserved, owners)
    except (Exception, SystemExit) as error:
        return PluginRecord(provenance=provenance, state=PluginState.BROKEN, detail=sentence(error), cause=error)
    return PluginRecord(provenance=provenance, state=PluginState.LOADED, detail="" if entries else "it offers nothing", entries=entries)


def _offers(candidate: Candidate) -> list[Spec]:
    plugin = candidate.load()
    manager = pluggy.PluginManager(hookspecs.ENTRY_POINT_GROUP)
    manager.add_hookspecs(hookspecs)
    _check_for_unmarked_hooks(plugin)
    manager.register(plugin, candidate.name)
    specs: list[Spec] = []
    for caller in manager.get_hookcallers(plugin) or ():
        for implementation in caller.get_hookimpls():
            if caller.name not in hooks():
                if implementation.optionalhook:
                    continue
                raise PluginError(f"it implements {caller.name}, which is no hook of pararnn; {_nearest_hook(caller.name)}")
            if implementation.wrapper or implementation.hookwrapper:
                raise PluginError(f"its {caller.name} is a hook wrapper; hooks of pararnn only return records, so drop wrapper=True")
            specs.extend(_checked(caller.name, implementation.function()))
    return specs


def _check_for_unmarked_hooks(plugin: object) -> None:
    for name in dir(plugin):
        function = inspect.getattr_static(plugin, name, None)
        marks = (f"{hookspecs.ENTRY_POINT_GROUP}_impl", f"{hookspecs.ENTRY_POINT_GROUP}_spec")
        if name.startswith("pararnn_") and inspect.isfunction(function) and not any(hasattr(function, mark) for mark in marks):
            remedy = "mark it with pararnn.hookspecs.hookimpl" if name in hooks() else f"{_nearest_hook(name)} (or rename it: the prefix is reserved)"
            raise PluginError(f"its function {name} has the prefix of a hook and is not marked as one, so it would never be called; {remedy}")


def _nearest_hook(name: str) -> str:
    return f"the nearest is {difflib.get_close_matches(name, hooks(), n=1, cutoff=0.0)[0]}"


def _checked(hook: str, result: object) -> list[Spec]:
    wanted = hooks()[hook]
    if not isinstance(result, Iterable) or isinstance(result, (str, bytes, Mapping)):
        raise PluginError(f"its {hook} returned {type(result).__name__}, not an iterable of {wanted.__name__}; return a list of records")
    specs = list(result)
    for spec in specs:
        if not isinstance(spec, wanted):
            raise PluginError(f"its {hook} returned a {type(spec).__name__} ({spec!r}) among its records; each must be a {wanted.__name__}")
    return specs


def _claim(entries: tuple[Entry[Spec], ...], reserved: frozenset[str], owners: dict[tuple[str, ...], str]) -> None:
    """Refuse names that `distribution:name` cannot tell apart, and names that the core's own would hide."""
    claims: dict[tuple[str, ...], str] = {}
    for entry in entries:
        spec, kind = entry.spec, type(entry.spec).__name__
        key = (entry.provenance.distribution, kind, spec.op if isinstance(spec, BackendSpec) else "", spec.name)
        owner = owners.get(key) or claims.get(key)
        if owner is not None:
            raise PluginError(f"it offers the {kind} {spec.name!r}, which plugin {owner!r} of the same distribution offers too; rename one")
        if kind in ("CellSpec", "LearnerSpec") and spec.name in reserved:
            raise PluginError(f"it offers the {kind} {spec.name!r}, which is a name of the core (pararnn.{spec.name}); rename it")
        claims[key] = entry.provenance.plugin
    owners.update(claims)
