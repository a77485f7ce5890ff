"""Recurrent networks solved in parallel over time.

Names load when they are first used: importing `pararnn` imports no torch. Cells and learners of installed plugins are names of this
package too (`from pararnn import ParaCfC`), and the same objects as in the plugin's own package.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import pkgutil
import sys
from typing import Any

from pararnn.errors import (
    AgreementError,
    AmbiguousNameError,
    BackendError,
    CellError,
    CompilationError,
    ConfigError,
    ConformanceError,
    ConvergenceError,
    DifferentiationError,
    DTypeError,
    InputError,
    ParaRNNError,
    PluginError,
    PluginWarning,
    ShapeError,
    StructureError,
    UnknownNameError,
)

PUBLIC = {
    "scan": "pararnn.scans:scan",
    "solve": "pararnn.solver.api:solve",
    "newton_apply": "pararnn.solver.api:newton_apply",
    "sequential_apply": "pararnn.solver.api:sequential_apply",
    "NewtonConfig": "pararnn.solver.config:NewtonConfig",
    "Plan": "pararnn.solver.planner:Plan",
    "SolveResult": "pararnn.solver.result:SolveResult",
    "Status": "pararnn.solver.result:Status",
    "ParaRNN": "pararnn.layers:ParaRNN",
    "Decoder": "pararnn.decoding:Decoder",
    "verify_agreement": "pararnn.verify:verify_agreement",
    "AgreementReport": "pararnn.verify:AgreementReport",
    "Structure": "pararnn.structures:Structure",
    "Diagonal": "pararnn.structures:Diagonal",
    "BlockDiagonal": "pararnn.structures:BlockDiagonal",
    "Dense": "pararnn.structures:Dense",
    "Cell": "pararnn.cell:Cell",
    "check_cell": "pararnn.cell:check_cell",
    "select": "pararnn.selection:select",
    "Request": "pararnn.selection:Request",
}

__all__ = [
    "AgreementError",
    "AmbiguousNameError",
    "BackendError",
    "CellError",
    "CompilationError",
    "ConfigError",
    "ConformanceError",
    "ConvergenceError",
    "DTypeError",
    "DifferentiationError",
    "InputError",
    "ParaRNNError",
    "PluginError",
    "PluginWarning",
    "ShapeError",
    "StructureError",
    "UnknownNameError",
    *PUBLIC,
]

# A library says nothing on stderr unless its user configures logging; plugin faults are warned about besides.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    """A public name of the core, a submodule, or else a cell or learner of an installed plugin."""
    if name in PUBLIC:
        try:
            value = globals()[name] = pkgutil.resolve_name(PUBLIC[name])
        except AttributeError as error:
            raise ImportError(f"pararnn.{name} should be {PUBLIC[name]} and is not there ({error}); reinstall pararnn-core") from error
        return value
    if name == "__version__":
        return importlib.import_module("pararnn.distributions").core_version()
    if name.startswith("_"):
        raise AttributeError(f"module 'pararnn' has no attribute {name!r}")
    if importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    registry = importlib.import_module("pararnn.registry").installed()
    if name == "cells":
        return registry.cells
    try:
        return registry.public_name(name).load()
    except UnknownNameError as error:
        # `from pararnn import Name` drops the message of an AttributeError, so the import statement gets the ImportError it would raise itself.
        caller = sys._getframe(1).f_code.co_name
        raise (ImportError(str(error), name=__name__) if caller == "_handle_fromlist" else AttributeError(str(error))) from error


def __dir__() -> list[str]:
    """The names of this package, with those of installed plugins."""
    registry = importlib.import_module("pararnn.registry").installed()
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted({*globals(), *PUBLIC, "cells", "__version__", *modules, *registry.cells, *registry.learners})
