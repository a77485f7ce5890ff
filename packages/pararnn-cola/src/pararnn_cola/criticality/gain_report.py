"""What near-critical initialisation did: the gain of each layer, what led to it, and whether it is what was asked for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pararnn_cola.criticality.search import Trial


@dataclass(frozen=True)
class LayerGain:
    """The gain of one layer; all trials are kept, in their order."""

    gain: float
    """`W` is now `gain * W / norm(W)`; always finite"""
    exponent: float
    """the largest exponent at that gain, mean over trajectories"""
    converged: bool
    """the exponent is within `tolerance` of `target`"""
    failed: bool
    """a search ended without meeting the tolerance, which a `CriticalityWarning` has told"""
    target: float
    tolerance: float
    mode: str
    """the mode that led to the gain, which is not the one asked for where its model did not hold"""
    method: str
    why: str
    trials: tuple[Trial, ...]
    system: str


@dataclass(frozen=True)
class GainReport:
    """The outcome of `near_critical`, one entry in `layers` for each layer, lowest first."""

    layers: tuple[LayerGain, ...]
    asked: str
    """the mode that was asked for"""
    steps: int
    """T, the steps that count in each exponent"""
    burn_in: int
    trajectories: int
    inputs: str
    """whether inputs were given, or how they were made up"""

    @property
    def critical(self) -> LayerGain:
        """The layer with the largest exponent, which is the network's as T grows: a layer does not feed back on those below.

        Over a finite T the exponent of the layers jointly, which `lyapunov_exponent(network)` gives, is larger, as small changes that pass from
        layer to layer count in it.
        """
        return max(self.layers, key=lambda layer: layer.exponent)

    @property
    def gain(self) -> float:
        """The gain; in a stack that of the layer with the largest exponent (all are in `gains`)."""
        return self.critical.gain

    @property
    def gains(self) -> tuple[float, ...]:
        """The gain of each layer."""
        return tuple(layer.gain for layer in self.layers)

    @property
    def exponent(self) -> float:
        """The largest exponent of a single layer; of the layers jointly, `critical` tells how it differs."""
        return self.critical.exponent

    @property
    def mode(self) -> str:
        """The mode that led to `gain`."""
        return self.critical.mode

    @property
    def trials(self) -> tuple[Trial, ...]:
        """What was tried on the way to `gain`."""
        return self.critical.trials

    @property
    def why(self) -> str:
        """How `gain` came about."""
        return self.critical.why

    @property
    def converged(self) -> bool:
        """Whether the exponent of every layer is within the tolerance of the target."""
        return all(layer.converged for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {**asdict(self), "gain": self.gain, "exponent": self.exponent, "mode": self.mode, "why": self.why, "converged": self.converged}

    def __str__(self) -> str:
        head = f"near_critical, mode {self.asked!r}, T={self.steps} after {self.burn_in}, {self.trajectories} trajectories, inputs {self.inputs}"
        lines = [
            f"layer {index}: gain {layer.gain:.4f}, exponent {layer.exponent:+.5f} "
            f"(target {layer.target:g} ± {layer.tolerance:g}: {_outcome(layer)}) after {len(layer.trials)} gains; {layer.why}"
            for index, layer in enumerate(self.layers)
        ]
        return "\n".join([head, *lines])


def _outcome(layer: LayerGain) -> str:
    """Whether the target was met; one step that ends beside it is no fault, and most end there."""
    if layer.converged:
        return "met"
    return "not met" if layer.failed else 'not met, as one step seldom does; mode="secant" goes on'
