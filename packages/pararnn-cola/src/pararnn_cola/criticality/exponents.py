"""Lyapunov exponents of a module along the trajectories that inputs drive."""

from __future__ import annotations

import warnings
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from pararnn.errors import ConfigError, DTypeError, InputError, ShapeError
from pararnn_cola.criticality import growth
from pararnn_cola.criticality.lookup import checked_layer, seen_by, system_of
from pararnn_cola.criticality.reports import BIAS, GIVEN, ExponentReport, SpectrumReport, mean_and_error
from pararnn_cola.criticality.systems import System, check_inputs
from pararnn_cola.errors import CriticalityWarning
from pararnn_cola.network import Network

Method: TypeAlias = Literal["auto", "product", "qr"]
BurnIn: TypeAlias = int | Literal["auto"]

BURN_IN, STEPS, TRAJECTORIES = 50, 200, 4
WIDEST_PRODUCT = 1024
"""The largest state for which "auto" forms whole products of Jacobians."""
VECTORS = 4
TOO_FEW_STEPS = 20


class Drive(NamedTuple):
    """Inputs to measure under, and what to say about them."""

    inputs: Tensor
    burn_in: int
    origin: str

    @property
    def steps(self) -> int:
        """The steps that count."""
        return self.inputs.shape[1] - self.burn_in


def lyapunov_exponent(
    source: Any,
    inputs: Tensor | None = None,
    *,
    method: Method = "auto",
    burn_in: BurnIn = "auto",
    layer: int | None = None,
    vectors: int = VECTORS,
    seed: int = 0,
) -> ExponentReport:
    """The largest Lyapunov exponent of a network, a layer, a cell or a recurrent module of torch.

    Args:
        source: what to measure; the layers of a network jointly, unless `layer` chooses one, which is then driven by those below it.
        inputs: `(batch, time, *input)`, one trajectory a sample, from the zero state on; if left out, standard normal ones are made up, with a
            warning.
        method: "product" takes the norm of the product of all Jacobians, "qr" the fastest of a few vectors, which costs little for large states;
            "auto" is "product" up to 1024 numbers of state.
        burn_in: steps at the start that do not count; "auto" takes 50, of short inputs a fifth.
        vectors: how many vectors "qr" follows.
        seed: of the made-up inputs and of the vectors; the same call gives the same number.

    Raises:
        InputError: inputs or states are not finite.
        ShapeError: inputs do not fit, or the burn-in leaves none of them.
    """
    system, drive = prepare(source, inputs, burn_in=burn_in, layer=layer, seed=seed)
    chosen = checked_method(method, system)
    values = largest(system, drive, chosen, vectors, seed)
    refuse_lost(system, values)
    mean, error = mean_and_error(values)
    return ExponentReport(
        exponent=float(mean),
        trajectories=tuple(values.tolist()),
        standard_error=None if error is None else float(error),
        steps=drive.steps,
        burn_in=drive.burn_in,
        method=chosen,
        bias=BIAS[chosen],
        inputs=drive.origin,
        system=system.name,
    )


def lyapunov_spectrum(
    source: Any,
    inputs: Tensor | None = None,
    *,
    k: int | None = None,
    burn_in: BurnIn = "auto",
    layer: int | None = None,
    seed: int = 0,
) -> SpectrumReport:
    """The `k` largest Lyapunov exponents, all if `k` is left out; what is measured, and under which inputs, is as in `lyapunov_exponent`."""
    system, drive = prepare(source, inputs, burn_in=burn_in, layer=layer, seed=seed)
    count = system.state_size if k is None else k
    if not isinstance(count, int) or not 1 <= count <= system.state_size:
        raise ConfigError(f"k={k}, but a state of {system.state_size} numbers has 1 to {system.state_size} exponents", k=k)
    values = growth.column_exponents(system, drive.inputs, drive.burn_in, count, seed)
    refuse_lost(system, values)
    values = values.sort(-1, descending=True).values
    mean, error = mean_and_error(values)
    return SpectrumReport(
        exponents=tuple(mean.tolist()),
        standard_errors=None if error is None else tuple(error.tolist()),
        trajectories=tuple(map(tuple, values.tolist())),
        steps=drive.steps,
        burn_in=drive.burn_in,
        state_size=system.state_size,
        inputs=drive.origin,
        system=system.name,
    )


def prepare(source: Any, inputs: Tensor | None, *, burn_in: BurnIn, layer: int | None, seed: int) -> tuple[System, Drive]:
    """The system that is meant, and the inputs that it sees."""
    system = system_of(source, layer)
    below = checked_layer(source, layer) if isinstance(source, Network) and layer is not None else 0
    lowest = system_of(source, 0) if below else system
    drive = driven(lowest, inputs, burn_in, seed)
    return system, drive._replace(inputs=seen_by(source, drive.inputs, below)) if below else drive


def driven(system: System, inputs: Tensor | None, burn_in: BurnIn, seed: int) -> Drive:
    """The inputs in the dtype of `system`, made up with a `CriticalityWarning` where there are none, and the burn-in in steps."""
    if burn_in != "auto" and (isinstance(burn_in, bool) or not isinstance(burn_in, int)):
        raise ConfigError(f'burn_in={burn_in!r}; it is a whole number of steps, or "auto"', burn_in=burn_in)
    origin = GIVEN
    if inputs is None:
        if system.input_shape is None:
            raise ConfigError(f"{system.name} does not tell what its inputs look like, so none can be made up; pass inputs (batch, time, *input)")
        length = BURN_IN + STEPS if burn_in == "auto" else burn_in + STEPS
        origin = f"made up, standard normal: {TRAJECTORIES} of {length} steps, seed {seed}"
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(TRAJECTORIES, length, *system.input_shape, generator=generator, dtype=torch.float64)
        warnings.warn(
            f"no inputs were given, so {system.name} is driven by standard normal ones; real inputs give another exponent", CriticalityWarning
        )
    check_inputs(system, inputs)
    if not inputs.is_floating_point():
        raise DTypeError(f"inputs are floating point, got {inputs.dtype}; class indices go through one_hot(...).float()", dtype=inputs.dtype)
    if not bool(inputs.isfinite().all()):
        raise InputError("the inputs are not all finite")
    time = inputs.shape[1]
    chosen = min(BURN_IN, time // 5) if burn_in == "auto" else burn_in
    if not 0 <= chosen < time:
        raise ShapeError(f"a burn-in of {chosen} leaves nothing of inputs with {time} steps; give longer inputs or a smaller burn_in", time=time)
    if burn_in == "auto" and time - chosen < TOO_FEW_STEPS:
        warnings.warn(
            f"only {time - chosen} steps count, so that the exponent is biased by much; give longer inputs, or burn_in= to say that it is meant",
            CriticalityWarning,
        )
    return Drive(inputs.detach().to(system.device, system.dtype), chosen, origin)


def checked_method(method: Method, system: System) -> Literal["product", "qr"]:
    """The method that `method` means for `system`."""
    if method not in ("auto", "product", "qr"):
        raise ConfigError(f'method={method!r} is none of "auto", "product", "qr"', method=method)
    if method == "auto":
        return "product" if system.state_size <= WIDEST_PRODUCT else "qr"
    return method


def largest(system: System, drive: Drive, method: Literal["product", "qr"], vectors: int, seed: int) -> Tensor:
    """The largest exponent of each trajectory, `(batch,)`, NaN where it left the numbers."""
    if method == "product":
        return growth.product_exponents(system, drive.inputs, drive.burn_in)
    if not isinstance(vectors, int) or vectors < 1:
        raise ConfigError(f"vectors={vectors!r}; a whole number of them is followed, at least one", vectors=vectors)
    return growth.column_exponents(system, drive.inputs, drive.burn_in, min(vectors, system.state_size), seed).amax(-1)


def refuse_lost(system: System, values: Tensor) -> None:
    """Raise if a trajectory left the numbers; `values` are the exponents, `(batch,)` or `(batch, count)`."""
    lost = int(values.isnan().view(len(values), -1).any(-1).sum())
    if lost:
        raise InputError(
            f"the states of {lost} of {len(values)} trajectories of {system.name} became infinite or NaN, so there is no exponent; "
            "the recurrent weights are too large for this activation, a weight is not finite, or the dtype is too narrow"
        )
