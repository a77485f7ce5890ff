"""Pictures of exponents and of alignment, with matplotlib (`pip install 'pararnn-cola[plot]'`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pararnn.errors import BackendError, ConfigError
from pararnn_cola.alignment.tracking import TrackedAlignment
from pararnn_cola.criticality.curve import GainCurve
from pararnn_cola.criticality.reports import SpectrumReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_gain_curve(curve: GainCurve, *, axes: Axes | None = None) -> Axes:
    """Axes with the largest exponent over the recurrent gain, which is drawn by its logarithm, and a line at 0.

    Gains without a finite exponent are left out; bars are standard errors over trajectories.
    """
    on = _axes(axes)
    errors = curve.standard_errors or (0.0,) * len(curve.gains)
    points = sorted((gain, value, error) for gain, value, error in zip(curve.gains, curve.exponents, errors, strict=True) if math.isfinite(value))
    if not points:
        raise ConfigError(f"none of the {len(curve.gains)} exponents is finite, so there is nothing to plot")
    gains, values, spread = (list(column) for column in zip(*points, strict=True))
    on.errorbar(gains, values, yerr=None if curve.standard_errors is None else spread, marker=".", label=curve.system)
    on.axhline(0.0, color="grey", linestyle=":")
    on.set_xscale("log")
    on.set_xlabel("recurrent gain")
    on.set_ylabel("largest exponent per step")
    return on


def plot_spectrum(spectrum: SpectrumReport, *, axes: Axes | None = None) -> Axes:
    """Axes with the exponents of `spectrum` in their order, from 1, and a line at 0.

    Infinite ones are left out; bars are standard errors over trajectories.
    """
    on = _axes(axes)
    errors = spectrum.standard_errors or (0.0,) * len(spectrum.exponents)
    known = [(index, value, error) for index, (value, error) in enumerate(zip(spectrum.exponents, errors, strict=True), 1) if math.isfinite(value)]
    if not known:
        raise ConfigError(f"none of the {len(spectrum.exponents)} exponents is finite, so there is nothing to plot")
    places, values, spread = (list(column) for column in zip(*known, strict=True))
    on.errorbar(places, values, yerr=None if spectrum.standard_errors is None else spread, marker=".", label=spectrum.system)
    on.axhline(0.0, color="grey", linestyle=":")
    on.set_xlabel("index")
    on.set_ylabel("exponent per step")
    return on


def plot_alignment(tracked: Sequence[TrackedAlignment], *, layer: int = 0, axes: Axes | None = None) -> Axes:
    """Axes with the cosines of one layer's signals with the exact ones over a training: the rule's, TBPTT-1's, and the best closure's."""
    if not tracked:
        raise ConfigError("there is no measurement to plot; track_alignment gives them")
    count = len(tracked[0].report.layers)
    if not -count <= layer < count:
        raise ConfigError(f"layer={layer}, but {count} were measured, numbered from 0", layer=layer)
    on = _axes(axes)
    for name, label in (("signal", tracked[0].report.rule), ("instantaneous", "instantaneous d"), ("closure", "best closure")):
        points = [(entry.batches, getattr(entry.report.layers[layer], name)) for entry in tracked]
        known = [(batches, value) for batches, value in points if value is not None]
        if known:
            on.plot([batches for batches, _ in known], [value for _, value in known], marker=".", label=label)
    on.set_xlabel("batches")
    on.set_ylabel("cosine with the exact signal")
    on.legend(fontsize="x-small")
    return on


def _axes(axes: Axes | None) -> Axes:
    if axes is not None:
        return axes
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise BackendError(f"matplotlib cannot be imported ({error}); pip install 'pararnn-cola[plot]'") from error
    fresh: Axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")[1]
    return fresh
