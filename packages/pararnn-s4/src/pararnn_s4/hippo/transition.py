"""HiPPO matrices, and the low-rank part whose addition makes them normal.

`legs` is the scaled Legendre measure (all of the past, every age weighted alike), `legt` the translated Legendre measure (a sliding window),
`fourier` or `fout` the truncated Fourier basis of the same window. Built in float64 and cast once.
"""
# ruff: noqa: N803, N806 -- A, B, N, P are the names of the literature and of the reference functions.

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_s4.placement import place

# The rank that makes the matrix normal, and the real part that all eigenvalues of the normal matrix then share.
RANKS = {"legs": 1, "legt": 2, "fourier": 1}
REAL_PARTS = {"legs": -0.5, "legt": 0.0, "fourier": 0.0}
ALIASES = {"fout": "fourier"}
MEASURES = (*RANKS, *ALIASES)


def canonical(measure: str) -> str:
    """`measure` under its first name.

    Raises:
        ConfigError: no such measure.
    """
    name = ALIASES.get(measure, measure)
    if name not in RANKS:
        raise ConfigError(f"measure {measure!r} is unknown; choose one of {', '.join(MEASURES)}")
    return name


def transition(
    measure: str, N: int, *, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None
) -> tuple[Float[Tensor, "N N"], Float[Tensor, "N 1"]]:
    """A and B of `dx/dt = A x + B u`, whose state holds the coefficients of the past of u in the basis of `measure`.

    The numbers of lrnnx and state-spaces, as tensors instead of numpy arrays.

    Raises:
        ConfigError: an unknown measure, `N < 1`, or an odd `N` with `fourier`, whose basis comes in sine and cosine pairs.

    Source: Gu et al., "HiPPO", 2020; the scaling of `legt` and `fourier` is that of Gu et al., "How to train your HiPPO", 2022.
    """
    name = canonical(measure)
    if N < 1:
        raise ConfigError(f"a state needs at least one entry, got N={N}")
    A, B = {"legs": _legs, "legt": _legt, "fourier": _fourier}[name](N)
    return place(A, dtype, device), place(B.unsqueeze(-1), dtype, device)


def rank_correction(
    measure: str, N: int, rank: int = 1, dtype: torch.dtype = torch.float, *, device: torch.device | str | None = None
) -> Float[Tensor, "rank N"]:
    """P such that `A + P^T P` is normal (`P^T P` the sum of outer products of the rows), padded with rows of zeros to `rank`.

    Raises:
        ConfigError: an unknown measure, a `rank` below what the measure needs (2 for `legt`, 1 for the others), or an odd `N` with `fourier`.

    Source: Gu et al., "Efficiently modeling long sequences with structured state spaces", 2022, appendix C.1.
    """
    name = canonical(measure)
    if rank < RANKS[name]:
        raise ConfigError(f"{measure} becomes normal by a correction of rank {RANKS[name]}, got rank={rank}; pass rank={RANKS[name]} or more")
    order = _arange(N)
    if name == "legs":
        rows = [torch.sqrt(order + 0.5)]
    elif name == "legt":
        entries = torch.sqrt(order + 0.5)
        rows = [entries * (order % 2 == 1), entries * (order % 2 == 0)]
    else:
        rows = [_fourier_input(N)]
    rows += [torch.zeros_like(order)] * (rank - len(rows))
    return place(torch.stack(rows), dtype, device)


def _arange(N: int) -> Tensor:
    return torch.arange(N, dtype=torch.float64, device="cpu")


def _legs(N: int) -> tuple[Tensor, Tensor]:
    order = _arange(N)
    weights = torch.sqrt(2 * order + 1)
    return -torch.tril(torch.outer(weights, weights), diagonal=-1) - torch.diag(order + 1), weights


def _legt(N: int) -> tuple[Tensor, Tensor]:
    order = _arange(N)
    weights = torch.sqrt(2 * order + 1)
    row, column = order.unsqueeze(1), order.unsqueeze(0)
    # Above the diagonal the signs alternate; below it all are alike.
    signs = torch.where((row < column) & ((column - row) % 2 == 1), -1.0, 1.0).to(torch.float64)
    return -0.5 * signs * torch.outer(weights, weights), 0.5 * weights


def _fourier(N: int) -> tuple[Tensor, Tensor]:
    B = _fourier_input(N)
    frequencies = torch.stack([torch.zeros_like(_arange(N // 2)), _arange(N // 2)], dim=-1).flatten()[1:]
    rotation = math.pi * (torch.diag(frequencies, -1) - torch.diag(frequencies, 1))
    return rotation - torch.outer(B, B), B


def _fourier_input(N: int) -> Tensor:
    if N % 2:
        raise ConfigError(f"the Fourier basis comes in pairs of a sine and a cosine, so N must be even, got N={N}; pass N={N + 1}")
    B = torch.zeros(N, dtype=torch.float64, device="cpu")
    B[0::2] = math.sqrt(2)
    B[0] = 1.0
    return B
