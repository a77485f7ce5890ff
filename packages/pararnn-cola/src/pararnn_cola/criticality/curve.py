"""The largest exponent as a function of the recurrent gain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError
from pararnn_cola.criticality.exponents import VECTORS, BurnIn, Method, checked_method, largest, prepare
from pararnn_cola.criticality.gain import scaled_by
from pararnn_cola.criticality.norms import chosen_weight, operator_norm
from pararnn_cola.criticality.reports import mean_and_error
from pararnn_cola.network import Network


@dataclass(frozen=True)
class GainCurve:
    """Exponents at `gains`, each the mean over trajectories; NaN where states left the numbers."""

    gains: tuple[float, ...]
    exponents: tuple[float, ...]
    standard_errors: tuple[float, ...] | None
    steps: int
    burn_in: int
    method: str
    inputs: str
    system: str

    def crossings(self) -> tuple[float, ...]:
        """The gains at which the exponent is 0, by straight lines in log gain between neighbours; there may be none, or several."""
        pairs = sorted(zip(self.gains, self.exponents, strict=True))
        found = []
        for (left, below), (right, above) in pairwise(pairs):
            if math.isfinite(below) and math.isfinite(above) and (below < 0) != (above < 0):
                share = below / (below - above)
                found.append(math.exp((1 - share) * math.log(left) + share * math.log(right)))
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        return asdict(self)


def gain_curve(
    source: Any,
    inputs: Tensor | None = None,
    gains: Sequence[float] = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0),
    *,
    layer: int = 0,
    method: Method = "auto",
    burn_in: BurnIn = "auto",
    vectors: int = VECTORS,
    weight: nn.Parameter | None = None,
    seed: int = 0,
) -> GainCurve:
    """The exponent of `source`, in a network that of one `layer`, with recurrent weights `gain * W / norm(W)` for each of `gains`.

    The weights are what they were afterwards. Arguments are those of `near_critical`.
    """
    try:
        gains = tuple(map(float, gains))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"gains={gains!r} are not numbers ({error}); give a sequence of them, all above 0 and finite", gains=gains) from error
    if not gains or not all(0 < gain < math.inf for gain in gains):
        raise ConfigError(f"gains={gains}; give at least one, all above 0 and finite", gains=gains)
    if weight is not None and isinstance(source, Network):
        raise ConfigError("weight= names a parameter of a single module; a network's layers know theirs: choose one by layer=")
    chosen = layer if isinstance(source, Network) else None
    system, drive = prepare(source, inputs, burn_in=burn_in, layer=chosen, seed=seed)
    part = source.recurrent[layer] if isinstance(source, Network) else source
    parameter = chosen_weight(part, weight)
    used = checked_method(method, system)
    before = parameter.detach().clone()
    try:
        scale = scaled_by(parameter, operator_norm(part if weight is None else parameter))
        measured = []
        for gain in gains:
            scale(gain)
            measured.append(mean_and_error(largest(system, drive, used, vectors, seed)))
    finally:
        with torch.no_grad():
            parameter.copy_(before)
    errors = tuple(float(error) for _, error in measured if error is not None)
    return GainCurve(
        gains=gains,
        exponents=tuple(float(mean) for mean, _ in measured),
        standard_errors=errors or None,
        steps=drive.steps,
        burn_in=drive.burn_in,
        method=used,
        inputs=drive.origin,
        system=system.name,
    )
