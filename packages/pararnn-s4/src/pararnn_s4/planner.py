"""Convolution or scan: which computes the outputs of a state-space model at less cost, from counted operations.

The convolution makes a kernel as long as the sequence and multiplies transforms; the state before the first sample and the one after the last
are sums of their own over the whole sequence. The scan goes through chunks of time (`pararnn_s4.cells.outputs`): it takes more calls, but its
arithmetic is matrix products, and both states come with it. So the convolution wins for short sequences, where calls count, for many sequences,
which share one kernel, and on a GPU; the scan for few long ones on a CPU, and where both states are wanted.

Rates are seconds, measured on one core of a server CPU, forward and backward, and on one H200, forward. One choice serves training and inference:
over 116 shapes on the CPU it takes at most 1.2 times as long as the better method forward and backward, and at most 1.4 times (on average 1.02) in
a forward pass alone.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from pararnn.errors import ConfigError
from pararnn_s4.cells.outputs import chunk_length, multiplications

Method: TypeAlias = Literal["convolution", "scan"]

# Numbers of 32 MiB in single precision: a larger array is the system's again when it is freed, and the next one's pages are cleared anew.
FRESH = 2**23


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """Seconds of the parts of a convolution.

    Attributes:
        calls: of its calls of torch.
        sampling: of a number of the sampled model.
        squares: of a multiplication in the squares of a transition with a low-rank part, in double precision.
        sums: of a term of the sums over the state that make the kernel.
        transform: of a number in a transform, for each doubling of its size.
        state_calls: of the calls for one of the states, before or after.
        state_sampling: of a number of the sampled model, for it.
        state_sums: of a term of the sums over time or state that it takes.
        state_matrix: of a multiplication with a transition that has a low-rank part, there.
        fresh: of a number of arrays above `FRESH`.
    """

    calls: float
    sampling: float
    squares: float
    sums: float
    transform: float
    state_calls: float
    state_sampling: float
    state_sums: float
    state_matrix: float
    fresh: float


@dataclass(frozen=True, kw_only=True)
class Scan:
    """Seconds of the parts of a scan.

    Attributes:
        calls: of its calls of torch.
        sampling: of a number of the sampled model, powers of it included.
        squares: as for a convolution.
        products: of a multiplication in the products of chunks, moving the factors included.
        fresh: of a number of arrays above `FRESH`.
    """

    calls: float
    sampling: float
    squares: float
    products: float
    fresh: float


RATES = {
    "cpu": (
        Convolution(
            calls=1.7e-3,
            sampling=5.1e-7,
            squares=2.25e-10,
            sums=3.5e-10,
            transform=4.2e-10,
            state_calls=9.7e-4,
            state_sampling=5.4e-7,
            state_sums=6.1e-10,
            state_matrix=8e-10,
            fresh=1.8e-8,
        ),
        Scan(calls=3.2e-3, sampling=1.1e-6, squares=2.9e-10, products=2.1e-10, fresh=6.6e-9),
    ),
    "cuda": (
        Convolution(
            calls=1.4e-3,
            sampling=4.5e-10,
            squares=5e-14,
            sums=5e-14,
            transform=6e-13,
            state_calls=1.4e-3,
            state_sampling=0.0,
            state_sums=5e-14,
            state_matrix=0.0,
            fresh=0.0,
        ),
        Scan(calls=3e-3, sampling=4.5e-10, squares=5e-14, products=5e-14, fresh=0.0),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The chosen method and the estimates behind it.

    Attributes:
        method: `"convolution"` or `"scan"`.
        batch: sequences.
        length: steps of each.
        convolution: estimated seconds by convolution; on a CPU forward and backward, on a GPU forward.
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
    by_convolution, by_scan = RATES["cpu" if kind == "cpu" else "cuda"]
    sampled, squares = d_model * state, d_model * max(1.0, math.log2(length)) * state**3 if dplr else 0.0
    size, signals = 2 * length, batch + channels + batch * channels
    convolution = (
        by_convolution.calls
        + by_convolution.sampling * sampled
        + by_convolution.squares * squares
        + by_convolution.sums * d_model * channels * state * length
        + by_convolution.transform * d_model * signals * size * math.log2(size)
        + by_convolution.fresh * _fresh(batch * channels * d_model * size)
    )
    for wanted, sums in ((has_state, channels), (needs_state, 1)):
        if wanted:
            terms, matrix = batch * sums * d_model * state * length, d_model * state**3 if dplr else 0
            convolution += by_convolution.state_calls + by_convolution.state_sampling * sampled
            convolution += by_convolution.state_sums * terms + by_convolution.state_matrix * matrix
    chunk = chunk_length(max(1, batch), length, state, channels, dense=dplr)
    scan = (
        by_scan.calls
        + by_scan.sampling * sampled
        + by_scan.squares * squares
        + by_scan.products * d_model * multiplications(batch, length, state, channels, chunk, dense=dplr)
        # What a chunk knows is its inputs, and as many numbers of the state or fewer.
        + by_scan.fresh * _fresh(2 * batch * channels * d_model * length)
    )
    method: Method = "convolution" if convolution <= scan else "scan"
    return Plan(method=method, batch=batch, length=length, convolution=convolution, scan=scan)


_remembered = functools.lru_cache(maxsize=1024)(_plan)


def _fresh(numbers: int) -> int:
    return numbers if numbers >= FRESH else 0
