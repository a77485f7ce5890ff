"""The engines that there are, by the names of their backends."""

from __future__ import annotations

import functools
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pararnn.compiler.engine import Engine

ENGINES = {"triton": "pararnn.compiler.gpu.backend:engine", "native": "pararnn.compiler.native.backend:engine"}


@functools.cache
def engine_named(name: str) -> Engine:
    """The engine behind a backend's name, imported when first asked for."""
    engine: Engine = pkgutil.resolve_name(ENGINES[name])()
    return engine
