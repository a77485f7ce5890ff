"""Online learning of recurrent networks: rules that learn as data streams by, their oracles, and the bench that compares them.

`COLA(network)` is the rule that the package is named after; `BPTT`, `TBPTT`, `TBPTT1`, `SnAp1`, `RTRL`, `EProp` and `UORO` stand beside it under the
same interface. Names load when they are first used, so that listing this plugin imports no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

HOMES = {
    "COLA": "learners.cola",
    "CoverageError": "errors",
    "CriticalityWarning": "errors",
    "Layer": "layers.base",
    "Learner": "learners.base",
    "Network": "network",
    "NonFiniteLossError": "errors",
    "RNNLayer": "layers.rnn",
    "Readout": "network",
    "StepResult": "learners.result",
    "StreamError": "errors",
    "TBPTT1": "learners.tbptt1",
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
