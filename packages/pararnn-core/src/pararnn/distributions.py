"""Installed distributions: which offer plugins, which core they were made for, and who else claims the name `pararnn`."""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from pararnn.errors import PluginError, sentence
from pararnn.hookspecs import ENTRY_POINT_GROUP

CORE = "pararnn-core"
CORE_HOOKS = "pararnn.builtin"
UNKNOWN_VERSION = "0+unknown"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An entry point that has not been imported yet; `load` imports it and returns the hook module.

    `requires` holds the `Requires-Dist` lines of its distribution.
    """

    name: str
    distribution: str
    version: str
    load: Callable[[], object]
    requires: tuple[str, ...] = ()


def discover() -> tuple[Candidate, ...]:
    """Every plugin of this environment, the core's own first, then by distribution and name; imports none of them."""
    found: dict[str, tuple[Candidate, ...]] = {}
    for distribution in importlib.metadata.distributions():
        try:
            text = distribution.read_text("entry_points.txt") or ""
            if f"[{ENTRY_POINT_GROUP}]" in text:
                # The first on sys.path is the one that imports resolve to; later copies are stale.
                found.setdefault(canonicalize_name(distribution.name), tuple(_candidates(distribution)))
        except Exception as error:
            logger.warning("metadata of a distribution cannot be read and was skipped: %s", sentence(error))
    # Running from a source folder on PYTHONPATH there is no metadata, and the core's hooks come through the same door.
    found.setdefault(CORE, (_core_candidate(),))
    return tuple(sorted((c for group in found.values() for c in group), key=lambda c: (c.distribution != CORE, c.distribution, c.name)))


def _candidates(distribution: importlib.metadata.Distribution) -> Iterator[Candidate]:
    name, version = canonicalize_name(distribution.name), distribution.version
    try:
        entry_points = distribution.entry_points.select(group=ENTRY_POINT_GROUP)
    except Exception as error:
        yield Candidate(name=name, distribution=name, version=version, load=functools.partial(_refuse, error))
        return
    for entry_point in entry_points:
        yield Candidate(name=entry_point.name, distribution=name, version=version, load=entry_point.load, requires=tuple(distribution.requires or ()))


def _refuse(error: Exception) -> object:
    raise PluginError(f"its entry_points.txt cannot be read ({sentence(error)}); reinstall the distribution") from error


def _core_candidate() -> Candidate:
    entry_point = importlib.metadata.EntryPoint("core", CORE_HOOKS, ENTRY_POINT_GROUP)
    return Candidate(name="core", distribution=CORE, version=core_version(), load=entry_point.load)


def version_of(distribution: str) -> str | None:
    """The installed version of `distribution` by its metadata, without importing it; `None` when it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def core_version() -> str:
    """The version of the running core: from its metadata, or from the source tree when it is not installed."""
    installed = version_of(CORE)
    if installed is not None:
        return installed
    try:
        project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return str(project["version"]) if project["name"] == CORE else UNKNOWN_VERSION
    except (OSError, ValueError, KeyError):
        return UNKNOWN_VERSION


def exclusion(requires: Sequence[str], core: str) -> str | None:
    """The requirement among `requires` that excludes version `core` of pararnn-core, or `None`."""
    if core == UNKNOWN_VERSION:
        return None
    for line in requires:
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            logger.info("requirement %r cannot be read and was ignored: %s", line, error)
            continue
        if canonicalize_name(requirement.name) != CORE or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        if not requirement.specifier.contains(core, prereleases=True):
            return str(requirement)
    return None


def import_name_rivals(claims: Mapping[str, Sequence[str]] | None = None) -> tuple[str, ...]:
    """Distributions other than pararnn-core that install a top-level package `pararnn`, sorted.

    `claims` maps import names to distributions; the default reads the metadata of everything installed (about 0.1 s).
    """
    claims = importlib.metadata.packages_distributions() if claims is None else claims
    return tuple(sorted({canonicalize_name(name) for name in claims.get("pararnn", ())} - {CORE}))
