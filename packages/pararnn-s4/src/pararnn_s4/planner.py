"""Convolution or scan: which computes the outputs of a state-space model at less cost, from counted operations.

The convolution makes a kernel as long as the sequence and multiplies transforms; the state before the first sample and the one after the last
are sums of their own over the whole sequence. The scan goes through chunks of time (`pararnn_s4.cells.outputs`): it takes more calls, but its
arithmetic is matrix products, and both states come with it. So the convolution wins for short sequences, where calls count, and on a GPU; the
scan for long ones on a CPU, and where states are wanted.

Rates are seconds, measured on one core of a server CPU and on one H200; only ratios decide. Gradients cost both about as many times more.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from pararnn.costs import ACCELERATOR, CPU, Machine
from pararnn.errors import ConfigError
from pararnn_s4.cells.outputs import chunk_length, multiplications

Method: TypeAlias = Literal["convolution", "scan"]

# Calls of torch: of a kernel and a convolution, of one of the sums for a state, of a scan.
CONVOLUTION_CALLS, STATE_CALLS, SCAN_CALLS = 180, 180, 380
# Plain operations on each number of the sampled model, all of them in double precision.
SAMPLING = 300


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Seconds of a multiplication and of one step of a transform.

    Attributes:
        product: in a batched product in single precision, moving its factors included.
        wide: in one in double precision.
        sums: in the sums over state or time that make kernels and states, tables included.
        transform: of one number, for each doubling of the transform's size.
    """

    product: float
    wide: float
    sums: float
    transform: float


RATES = {
    "cpu": Rates(product=8e-11, wide=1e-10, sums=1.7e-10, transform=3.5e-10),
    "cuda": Rates(product=5e-14, wide=5e-14, sums=5e-14, transform=6e-13),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The chosen method and the estimates behind it.

    Attributes:
        method: `"convolution"` or `"scan"`.
        batch: sequences.
        length: steps of each.
        convolution: estimated seconds of a forward pass by convolution.
        scan: estimated seconds by scan.
    """

    method: Method
    batch: int
    length: int
    convolution: float
    scan: float

    @property
    def reason(self) -> str:
        """The choice in words."""
        by = f"{self.convolution * 1e3:.1f} ms by convolution and {self.scan * 1e3:.1f} ms by scan"
        return f"{self.batch} sequences of {self.length} steps are estimated at {by}"

    def explain(self) -> str:
        """The plan in one sentence."""
        return f"{self.method}, because {self.reason}"


def plan(
    *,
    batch: int,
    length: int,
    d_model: int,
    state: int,
    channels: int = 1,
    device: torch.device | str = "cpu",
    dplr: bool = False,
    has_state: bool = False,
    needs_state: bool = False,
) -> Plan:
    """The cheaper method for `batch` sequences of `length` steps.

    Args:
        d_model: features of the state-space model.
        state: real numbers in the state of a feature (`d_state`).
        channels: outputs of each feature.
        device: where the tensors are.
        dplr: whether the transition has a low-rank part.
        has_state: whether there is a state before the first sample.
        needs_state: whether the state after the last sample is wanted.

    Raises:
        ConfigError: a size is negative, or one of the model below 1.
    """
    if min(batch, length) < 0 or min(d_model, state, channels) < 1:
        sizes = f"batch={batch}, length={length}, d_model={d_model}, state={state}, channels={channels}"
        raise ConfigError(f"a plan needs batch and length of at least 0 and a model of at least 1, got {sizes}")
    # The compiler warns of caches, and plans once for each graph anyway.
    make = _plan if torch.compiler.is_compiling() else _remembered
    return make(batch, max(1, length), d_model, state, channels, torch.device(device).type, dplr=dplr, has_state=has_state, needs_state=needs_state)


def explain(**sizes: int | bool | str | torch.device) -> str:
    """What `plan` of the same arguments chooses, in one sentence."""
    return plan(**sizes).explain()  # type: ignore[arg-type]


def _plan(batch: int, length: int, d_model: int, state: int, channels: int, kind: str, *, dplr: bool, has_state: bool, needs_state: bool) -> Plan:
    machine, rates = (CPU, RATES["cpu"]) if kind == "cpu" else (ACCELERATOR, RATES["cuda"])
    model = _model(length, d_model, state, machine, rates, dplr=dplr)
    convolution = model + _convolution(batch, length, d_model, state, channels, machine, rates)
    for wanted, sums in ((has_state, channels), (needs_state, 1)):
        if wanted:
            convolution += STATE_CALLS * machine.call + rates.sums * batch * sums * d_model * state * length
    chunk = chunk_length(max(1, batch), length, state, channels, dense=dplr)
    counted = multiplications(batch, length, state, channels, chunk, dense=dplr)
    scan = model + SCAN_CALLS * machine.call + rates.product * d_model * counted
    method: Method = "convolution" if convolution <= scan else "scan"
    return Plan(method=method, batch=batch, length=length, convolution=convolution, scan=scan)


_remembered = functools.lru_cache(maxsize=1024)(_plan)


def _model(length: int, d_model: int, state: int, machine: Machine, rates: Rates, *, dplr: bool) -> float:
    """Seconds to sample the model, and with a low-rank part to square its transition until it spans the sequence."""
    squares = max(1.0, math.log2(length)) * state**3 if dplr else 0.0
    return d_model * (SAMPLING * machine.element * state + rates.wide * squares)


def _convolution(batch: int, length: int, d_model: int, state: int, channels: int, machine: Machine, rates: Rates) -> float:
    """Seconds of the kernel, of the transforms of inputs, kernel and outputs, and of what they are called by."""
    size = 2 * length
    signals = batch + channels + batch * channels
    transforms = signals * size * max(1.0, math.log2(size)) * rates.transform
    return CONVOLUTION_CALLS * machine.call + d_model * (rates.sums * channels * state * length + transforms)
