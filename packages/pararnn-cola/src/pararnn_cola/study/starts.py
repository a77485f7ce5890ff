"""The networks that training begins from, one a seed, the same for every rule."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pararnn_cola.criticality.gain import near_critical
from pararnn_cola.errors import CriticalityWarning
from pararnn_cola.layers.rnn import RNNLayer
from pararnn_cola.network import Network, Readout
from pararnn_cola.study.settings import Entry, Initialisation
from pararnn_cola.tasks.base import Task

WEIGHT_SEED = 1000
READOUT_SCALE = 0.3
TRAJECTORIES, PROBE = 4, 1.2
"""Sequences that drive the network while its gain is found, and the second gain that is tried."""
IDENTITY_NOISE = 0.1


@dataclass(frozen=True, eq=False)
class Start:
    """A first network, on the CPU, with the gain of its recurrent weights and the exponent there, NaN where it was not measured."""

    network: Network
    gain: float
    exponent: float


@dataclass
class Starts:
    """First networks by seed; gains that were found once are kept, since finding them takes longer than a short training."""

    found: dict[tuple[object, ...], tuple[Tensor, float, float]] = field(default_factory=dict)

    def start(self, entry: Entry, task: Task, seed: int) -> Start:
        """Where `seed` begins."""
        generator = torch.Generator().manual_seed(WEIGHT_SEED + seed)
        layer = RNNLayer(task.input_size, entry.state_size, generator=generator)
        network = Network(layer, Readout(entry.state_size, task.output_size, scale=READOUT_SCALE, generator=generator))
        inputs = task.batch(TRAJECTORIES, generator).inputs
        with torch.no_grad():
            layer.weight_hh.copy_(_shaped(layer.weight_hh, entry.weights))
        key = (entry.weights, entry.state_size, entry.init, seed, tuple(inputs.flatten().tolist()))
        if key not in self.found:
            gain, exponent = _rescale(network, layer, inputs, entry.init)
            self.found[key] = layer.weight_hh.detach().clone(), gain, exponent
        weight, gain, exponent = self.found[key]
        with torch.no_grad():
            layer.weight_hh.copy_(weight)
        return Start(network, gain, exponent)


def _shaped(weight: Tensor, kind: str) -> Tensor:
    """Recurrent weights of `kind`, made of Gaussian ones with variance 1/state."""
    if kind == "orthogonal":
        basis: Tensor = torch.linalg.qr(weight * math.sqrt(weight.shape[0]))[0]
        return basis
    if kind == "identity":
        return torch.eye(weight.shape[0]) + IDENTITY_NOISE * weight
    return weight


def _rescale(network: Network, layer: RNNLayer, inputs: Tensor, init: Initialisation) -> tuple[float, float]:
    """Scale the recurrent weights in place; their gain and the exponent there."""
    if isinstance(init, str) and init != "none":
        with warnings.catch_warnings():
            # The exponent that was reached is in the results; no gain reaches the target for weights near the identity.
            warnings.simplefilter("ignore", CriticalityWarning)
            # Training begins at zero states, so the steps in which a network leaves them count.
            report = near_critical(network, inputs, mode=init, probe=PROBE, burn_in=0)
        return report.gain, report.exponent
    norm = float(layer.operator_norm())
    if init == "none":
        return norm, math.nan
    with torch.no_grad():
        layer.weight_hh.mul_(float(init) / norm)
    return float(init), math.nan
