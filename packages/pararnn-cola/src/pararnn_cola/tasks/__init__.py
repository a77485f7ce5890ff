"""Tasks to compare learning rules on: data that is the same everywhere, and numbers that say how well a network does.

`make("adding", length=100)` builds one by its name. Names load when they are first used, so that importing this package imports no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

HOMES = {
    "Adding": "adding",
    "Batch": "base",
    "Characters": "characters",
    "Classification": "classification",
    "Digits": "digits",
    "Lorenz": "lorenz",
    "Placement": "placement",
    "RowCIFAR10": "rows",
    "RowMNIST": "rows",
    "Step": "base",
    "TASKS": "registry",
    "Task": "base",
    "UCIHAR": "har",
    "loss_weights": "placement",
    "make": "registry",
    "rollout": "evaluation",
}
__all__ = [*HOMES]


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    """The names of this package, those not yet loaded included."""
    return sorted({*globals(), *HOMES})
