"""Checks that a plugin author runs on a cell, a structure or a backend; plain functions, usable without pytest.

    report = verify_cell(cell, x)                     # runs every check, each on a copy of its own
    print(report)                                     # what failed, and what to do about it
    check_step_broadcasts(cell, x)                    # one check alone; raises ConformanceError

With pytest, for the records of a plugin (see `pararnn.conformance.parametrize`):

    @parametrize_with_checks(*plugin.pararnn_register_cells(), *plugin.pararnn_register_structures())
    def test_conformance(check):
        check()

On the command line, for what is installed: `pararnn verify NAME`. Names load when they are first used: importing this package imports no torch.
"""

from __future__ import annotations

import pkgutil
from typing import Any

PUBLIC = {
    "CheckResult": "report",
    "ConformanceReport": "report",
    "Verdict": "report",
    "verify_cell": "cells",
    "cell_checks": "cells",
    "verify_structure": "structures",
    "structure_checks": "structures",
    "verify_backend": "backends",
    "backend_checks": "backends",
    "verify": "subjects",
    "Subject": "subjects",
    "subjects_named": "subjects",
    "parametrize_with_checks": "parametrize",
    "tolerance": "tolerances",
    "TOLERANCES": "tolerances",
}
CELL_MODULES = ("cell_steps", "cell_drives", "cell_claims", "cell_solves", "cell_engines", "cell_modules")
CHECK_MODULES = (*CELL_MODULES, "laws", "structures", "backends", "op_backends", "solve_backends")

__all__ = list(PUBLIC)


def __getattr__(name: str) -> Any:
    """A public name, or a check of any module of the kit."""
    modules = CHECK_MODULES if name.startswith("check_") else (PUBLIC[name],) if name in PUBLIC else ()
    for module in modules:
        found = getattr(pkgutil.resolve_name(f"{__name__}.{module}"), name, None)
        if found is not None:
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted({*globals(), *PUBLIC})
