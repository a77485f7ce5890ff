"""Near-critical initialisation: the recurrent weights scaled so that small changes neither grow nor die.

Source: W. Wang, K. Gao, G. Chen, "Global Credit Assignment via Dynamical Criticality", ICML 2026, for the modes "unit" and "two". They solve a local
model of the exponent once; "secant" and "bisect" go on until a tolerance is met.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError, InputError
from pararnn_cola.criticality.exponents import VECTORS, BurnIn, Drive, Method, checked_method, driven, largest
from pararnn_cola.criticality.gain_report import GainReport, LayerGain
from pararnn_cola.criticality.lookup import seen_by, system_of
from pararnn_cola.criticality.norms import chosen_weight, operator_norm
from pararnn_cola.criticality.search import Found, Mode, Search, solve
from pararnn_cola.criticality.systems import System
from pararnn_cola.errors import CriticalityWarning
from pararnn_cola.network import Network

ONE_STEP_TOLERANCE, SEARCH_TOLERANCE = 0.05, 1e-4
STABLE_SIDE = -0.005


def near_critical(
    source: Any,
    inputs: Tensor | None = None,
    *,
    mode: Mode = "two",
    probe: float = 1.2,
    target: float | None = None,
    tolerance: float | Literal["auto"] = "auto",
    gain_range: tuple[float, float] = (1e-3, 1e3),
    method: Method = "auto",
    burn_in: BurnIn = "auto",
    vectors: int = VECTORS,
    weight: nn.Parameter | None = None,
    seed: int = 0,
) -> GainReport:
    """Scale the recurrent weights `W` of `source` in place to `gain * W / norm(W)`, so that its largest exponent comes near `target`.

    Only the recurrent weights change. The layers of a network are done one by one from below, each driven by what it will see. What
    `report.converged` means is the same in every mode, that the exponent is within `tolerance` of the target; one step of "unit" or "two" seldom is.

    Args:
        source: what `lyapunov_exponent` takes; for modules other than layers of this package and torch's plain ones, `weight` names the parameter.
        inputs: `(batch, time, *input)` as the network will see them; 4 sequences of 250 steps are enough. Made up, with a warning, if left out.
        mode: "unit" assumes that the exponent rises by 1 with log gain, "two" measures the rise between the gains 1 and `probe`; both then
            take one step. "secant" and "bisect" search. Where the rise is no model to go by, "bisect" is used and the report says so.
        target: the exponent aimed at; by default 0 for "unit" and "two", -0.005, the stable side, for the others.
        tolerance: "auto" is 1e-4 where a search was made and 0.05 after one step.
        gain_range: the smallest and largest gain that may be tried.
        method, burn_in, vectors, seed: as in `lyapunov_exponent`.

    Raises:
        ConfigError: the recurrent weights are zero or not finite, or an option cannot work.
        InputError: states become infinite or NaN at every gain. After any error the weights are what they were.
    """
    _check_options(mode, probe, target, tolerance, gain_range)
    if weight is not None and isinstance(source, Network):
        raise ConfigError("weight= names a parameter of a single module; a network's layers know theirs")
    parts: list[tuple[Any, nn.Parameter]] = [
        (part, chosen_weight(part, weight)) for part in (source.recurrent if isinstance(source, Network) else (source,))
    ]
    before = [parameter.detach().clone() for _, parameter in parts]
    done: list[LayerGain] = []
    try:
        drive = driven(system_of(source, 0 if isinstance(source, Network) else None), inputs, burn_in, seed)
        for index, (part, parameter) in enumerate(parts):
            system = system_of(part)
            seen = drive._replace(inputs=seen_by(source, drive.inputs, index)) if index else drive
            measure = exponent_with(system, seen, checked_method(method, system), vectors, seed)
            scale = scaled_by(parameter, operator_norm(part if weight is None else parameter))
            found, search = _search(mode, probe, target, tolerance, gain_range, scale, measure)
            if all(trial.exponent == math.inf for trial in search.trials):
                raise InputError(
                    f"states of {system.name} became infinite or NaN at each of {len(search.trials)} gains from {gain_range[0]:g} to "
                    f"{gain_range[1]:g}; a weight or bias is not finite, or the dtype is too narrow",
                    gains=[trial.gain for trial in search.trials],
                )
            scale(found.trial.gain)
            done.append(_layer_gain(found, search, system, checked_method(method, system)))
    except BaseException:
        with torch.no_grad(), suppress(RuntimeError):
            for (_, parameter), old in zip(parts, before, strict=True):
                parameter.copy_(old)
        raise
    for index, one in enumerate(done):
        if one.failed:
            where = f"layer {index}" if len(done) > 1 else one.system
            warnings.warn(f"near_critical of {where}: {one.why} (gain {one.gain:.4g}, exponent {one.exponent:+.4f})", CriticalityWarning)
    return GainReport(layers=tuple(done), asked=mode, steps=drive.steps, burn_in=drive.burn_in, trajectories=len(drive.inputs), inputs=drive.origin)


def scaled_by(parameter: nn.Parameter, norm: float) -> Callable[[float], None]:
    """What sets `parameter` to its present value times a gain over `norm`.

    Raises:
        ConfigError: the norm is zero.
    """
    if not norm > 0:
        raise ConfigError(f"recurrent weights of shape {tuple(parameter.shape)} are zero, and no gain changes that; initialise them first")
    unit = parameter.detach().double() / norm

    @torch.no_grad()
    def scale(gain: float) -> None:
        parameter.copy_(gain * unit)

    return scale


def exponent_with(system: System, drive: Drive, method: Literal["product", "qr"], vectors: int, seed: int) -> Callable[[], float]:
    """What measures the mean exponent of `system` as it is now; NaN where states left the numbers."""
    return lambda: float(largest(system, drive, method, vectors, seed).mean())


def _search(
    mode: Mode,
    probe: float,
    target: float | None,
    tolerance: float | Literal["auto"],
    gain_range: tuple[float, float],
    scale: Callable[[float], None],
    measure: Callable[[], float],
) -> tuple[Found, Search]:
    def exponent_at(gain: float) -> float:
        scale(gain)
        return measure()

    if target is None:
        target = 0.0 if mode in ("unit", "two") else STABLE_SIDE
    low, high = map(math.log, gain_range)
    search = Search(exponent_at, target, SEARCH_TOLERANCE if tolerance == "auto" else tolerance, low, high)
    found = solve(search, mode, probe)
    if tolerance == "auto" and found.mode in ("unit", "two"):
        search.tolerance = ONE_STEP_TOLERANCE
    return found, search


def _layer_gain(found: Found, search: Search, system: System, method: str) -> LayerGain:
    met = search.met(found.trial)
    return LayerGain(
        gain=found.trial.gain,
        exponent=found.trial.exponent,
        converged=met,
        failed=not met and found.mode in ("secant", "bisect"),
        target=search.target,
        tolerance=search.tolerance,
        mode=found.mode,
        method=method,
        why=found.why,
        trials=tuple(search.trials),
        system=system.name,
    )


def _check_options(mode: str, probe: float, target: float | None, tolerance: float | str, gain_range: tuple[float, float]) -> None:
    if mode not in ("unit", "two", "secant", "bisect"):
        raise ConfigError(f'mode={mode!r} is none of "unit", "two", "secant", "bisect"', mode=mode)
    if not 1 < probe < math.inf:
        raise ConfigError(f"probe={probe}; the second gain that is tried lies above the first, which is 1, and near it", probe=probe)
    if target is not None and not math.isfinite(target):
        raise ConfigError(f"target={target}; an exponent to aim at is a finite number", target=target)
    if tolerance != "auto" and not (isinstance(tolerance, float | int) and tolerance > 0):
        raise ConfigError(f'tolerance={tolerance!r}; it is above zero, or "auto"', tolerance=tolerance)
    if not (isinstance(gain_range, tuple | list) and len(gain_range) == 2 and all(isinstance(end, int | float) for end in gain_range)):
        raise ConfigError(f"gain_range={gain_range!r}; give two numbers, the smallest and the largest gain", gain_range=gain_range)
    low, high = gain_range
    if not 0 < low < 1 < high < math.inf or probe > high:
        raise ConfigError(
            f"gain_range={gain_range}; it begins between 0 and 1 and ends above 1, at the probe {probe:g} or beyond: the first gain that is tried "
            "is 1, and a search goes both ways from there",
            gain_range=gain_range,
        )
