"""The engines that there are: those behind the backends of `solve` whose implementation names one.

An implementation does so by an attribute `engine`, a function without arguments that gives the engine, always the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pararnn.errors import BackendError, PluginError
from pararnn.registry import installed

if TYPE_CHECKING:
    from pararnn.compiler.engine import Engine


def engine_named(name: str) -> Engine:
    """The engine behind the backend of that name.

    Raises:
        BackendError: nobody offers the backend, or it has no engine.
        PluginError, AmbiguousNameError: as `find_engine`.
    """
    engine = find_engine(name)
    if engine is None:
        raise BackendError(f"{name!r} is no engine; there are {', '.join(label for label, _ in engines()) or 'none'}")
    return engine


def find_engine(name: str) -> Engine | None:
    """The engine behind the backend of that name; None where nobody offers the backend, or it has no engine.

    Raises:
        PluginError: the backend names what cannot be imported.
        AmbiguousNameError: several distributions offer one of that name.
    """
    entry = installed().backends("solve").get(name)
    make = None if entry is None else getattr(entry.load(), "engine", None)
    engine: Engine | None = None if make is None else make()
    return engine


def engines() -> Iterator[tuple[str, Engine]]:
    """Every engine that can be imported, and what it is asked for by; those of higher priority first."""
    backends = installed().backends("solve")
    for name in sorted(backends, key=lambda name: (-backends[name].spec.priority, name)):
        with contextlib.suppress(PluginError):
            engine = find_engine(name)
            if engine is not None:
                yield name, engine
