"""What `pararnn doctor` found out about backends, kept for later processes.

One JSON file in the user's cache. A finding belongs to a backend together with the versions it was tried with: after an upgrade of Python, of the
backend's distribution or of one of `PEERS` it no longer counts.
"""

from __future__ import annotations

import enum
import functools
import json
import logging
import os
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pararnn.distributions import version_of
from pararnn.provenance import Entry
from pararnn.specs import BackendSpec

PEERS = ("torch", "triton", "numba", "pykeops", "numpy")
logger = logging.getLogger(__name__)


class Outcome(enum.StrEnum):
    """How the probe of a backend ended."""

    OK = "ok"
    UNAVAILABLE = "unavailable"
    FAILED = "failed"
    CRASHED = "crashed"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The outcome of one probe, why, and how many seconds it took."""

    outcome: Outcome
    detail: str = ""
    seconds: float = 0.0


def path() -> Path:
    """Where findings are kept: `$XDG_CACHE_HOME/pararnn/doctor.json`, or below `~/.cache`."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache else Path.home() / ".cache") / "pararnn" / "doctor.json"


@functools.cache
def _versions() -> str:
    peers = (f"{name} {version_of(name)}" for name in PEERS)
    return ", ".join((f"{platform.python_implementation()} {platform.python_version()}", *peers))


def key(entry: Entry[BackendSpec]) -> str:
    """The backend and every version that its finding depends on."""
    return f"{entry.spec.op} | {entry.qualified_name} {entry.provenance.version} | {_versions()}"


@functools.cache
def read() -> Mapping[str, Finding]:
    """All findings on file, read once a process; a file that cannot be read counts as none and is logged."""
    try:
        text = path().read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        logger.warning("findings of `pararnn doctor` cannot be read and are ignored: %s", error)
        return {}
    try:
        return {name: Finding(**{**values, "outcome": Outcome(values["outcome"])}) for name, values in json.loads(text).items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("%s is not a record of findings and is ignored (%s); run `pararnn doctor` to write it anew", path(), error)
        return {}


def write(findings: Mapping[str, Finding]) -> Path:
    """Merge `findings`, by `key`, into the file; returns its path. Readers see the old file or the new one, never a part."""
    forget()
    merged = {**read(), **findings}
    target = path()
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({name: asdict(finding) for name, finding in merged.items()}, file, indent=1)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    forget()
    return target


def forget() -> None:
    """Drop what this process has read, so that the next question reads the file."""
    read.cache_clear()


def crash_of(entry: Entry[BackendSpec]) -> str | None:
    """What happened if this backend crashed a child process of `pararnn doctor`, at these versions; else `None`."""
    finding = read().get(key(entry))
    return finding.detail if finding is not None and finding.outcome is Outcome.CRASHED else None
