"""Online learning of recurrent networks: rules that learn as data streams by, their oracles, and the bench that compares them.

`COLA(network)` is the rule that the package is named after; `BPTT`, `TBPTT`, `TBPTT1`, `SnAp1`, `RTRL`, `EProp` and `UORO` stand beside it under the
same interface. Names load when they are first used, so that listing this plugin imports no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

HOMES = {
    "AlignmentReport": "alignment.reports",
    "BPTT": "learners.bptt",
    "COLA": "learners.cola",
    "CapturedStep": "streaming.capture",
    "CellLayer": "layers.cell",
    "ConvLayer": "layers.convolution",
    "CoverageError": "errors",
    "CriticalityWarning": "errors",
    "EProp": "learners.eprop",
    "ExactSignals": "alignment.exact",
    "ExponentReport": "criticality.reports",
    "GainCurve": "criticality.curve",
    "GainReport": "criticality.gain_report",
    "Layer": "layers.base",
    "LeakyLayer": "layers.leaky",
    "Learner": "learners.base",
    "Moment": "layers.base",
    "Network": "network",
    "NonFiniteLossError": "errors",
    "RNNLayer": "layers.rnn",
    "RTRL": "learners.rtrl",
    "Readout": "network",
    "SignalLearner": "learners.tbptt1",
    "Signals": "learners.result",
    "SnAp1": "learners.snap1",
    "SpectrumReport": "criticality.reports",
    "SpikingLayer": "layers.spiking",
    "Step": "streaming.items",
    "StepResult": "learners.result",
    "StepSystem": "criticality.systems",
    "StreamError": "errors",
    "TBPTT": "learners.tbptt",
    "TBPTT1": "learners.tbptt1",
    "TrainingReport": "streaming.report",
    "UORO": "learners.uoro",
    "capture": "streaming.capture",
    "closure_solve": "alignment.closure",
    "exact_signals": "alignment.exact",
    "gain_curve": "criticality.curve",
    "lyapunov_exponent": "criticality.exponents",
    "lyapunov_spectrum": "criticality.exponents",
    "measure_alignment": "alignment.measuring",
    "memmap_stream": "streaming.memmap",
    "near_critical": "criticality.gain",
    "operator_norm": "criticality.norms",
    "plot_alignment": "plotting",
    "plot_gain_curve": "plotting",
    "plot_spectrum": "plotting",
    "sequences": "streaming.sources",
    "stack_networks": "ensemble",
    "track_alignment": "alignment.tracking",
    "train": "streaming.driver",
    "unstack": "ensemble",
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
