"""The normal plus low-rank form of a HiPPO matrix, diagonalised: what S4 starts from."""
# ruff: noqa: N803, N806 -- A, B, N, P, V, W are the names of the literature and of the reference functions.

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from jaxtyping import Complex
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_s4.hippo.transition import REAL_PARTS, canonical, rank_correction, transition
from pararnn_s4.placement import place, require_pairs, require_precision

Gauge: TypeAlias = Literal["input", "lapack"]


def nplr(
    measure: str,
    N: int,
    rank: int = 1,
    dtype: torch.dtype = torch.float,
    diagonalize_precision: bool = True,
    B_clip: float | None = None,
    *,
    gauge: Gauge = "input",
    device: torch.device | str | None = None,
) -> tuple[Complex[Tensor, " half"], Complex[Tensor, "rank half"], Complex[Tensor, " half"], Complex[Tensor, "N half"]]:
    """W, P, B, V with `A = 2 Re(V diag(W) V*) - P0^T P0`, where `P = V* P0` and `B = V* B0` are the vectors in the eigenbasis.

    `half = N / 2`: one of each conjugate pair, the one whose eigenvalue has a negative (or zero) imaginary part, fastest first. An output
    vector c of the HiPPO basis reads the half state as `2 Re((V^T c) . x)`.

    An eigenvector is known only up to its phase. `gauge="input"` turns each so that its entry of B is real and positive: results are then
    the same with every LAPACK. `gauge="lapack"` keeps the phases that LAPACK happens to return, as lrnnx and state-spaces do.

    `B_clip` limits the entries of B. None (the default here) leaves B as HiPPO has it; a number limits the size of B, which no phase changes. With
    `gauge="lapack"` it limits the imaginary part instead; `B_clip=2.0, gauge="lapack"` is the reference's default.

    `diagonalize_precision=False` rounds to `dtype` before the diagonalisation instead of after it (only for comparisons).

    Raises:
        ConfigError: unknown measure or gauge, odd `N` or `N < 2`, a rank below that of the measure, a `B_clip` that is not positive.
        DTypeError: `dtype` is neither float32 nor float64.

    Source: Gu et al., "Efficiently modeling long sequences with structured state spaces", 2022, theorem 1 and appendix C.1.
    """
    require_precision(dtype)
    require_pairs(N)
    if gauge not in ("input", "lapack"):
        raise ConfigError(f'gauge {gauge!r} is unknown; choose "input" (reproducible) or "lapack" (as the eigensolver returns them)')
    if B_clip is not None and not B_clip > 0:
        raise ConfigError(f"B_clip is the largest entry that B may have, so it must be positive, got {B_clip}; None leaves B alone")

    working = torch.float64 if diagonalize_precision else dtype
    A, B = transition(measure, N, dtype=working, device="cpu")
    P = rank_correction(measure, N, rank, working, device="cpu")
    W, V = _eigenpairs(canonical(measure), A + P.mT @ P)

    B_half = V.mH @ B[:, 0].to(V.dtype)
    if gauge == "input":
        # By controllability of HiPPO no entry of B vanishes in the eigenbasis, so every phase is well determined.
        V = V * torch.sgn(B_half)
        B_half = B_half.abs().to(V.dtype)
    P_half = P.to(V.dtype) @ V.conj()
    if B_clip is not None:
        B_half = _clip(B_half, B_clip, gauge)
    W, P_half, B_half, V = (place(tensor, dtype, device) for tensor in (W, P_half, B_half, V))
    return W, P_half, B_half, V


def _eigenpairs(measure: str, normal: Tensor) -> tuple[Tensor, Tensor]:
    """The lower half of the spectrum of a real matrix that is skew-symmetric up to a multiple of the identity."""
    pairs = normal.shape[-1] // 2
    # The real part is known exactly; leaving only the skew part makes the problem Hermitian, hence accurate and with orthonormal vectors.
    skew = (normal - normal.mT) / 2
    frequencies, vectors = torch.linalg.eigh(skew * -1j)
    frequencies, vectors = frequencies[:pairs].clone(), vectors[:, :pairs].clone()
    if measure == "fourier":
        # Zero is a double eigenvalue with a real plane of eigenvectors; any solver may return vectors that are no conjugate pair.
        frequencies[-1] = 0.0
        vectors[:, -1] = 0.0
        vectors[0, -1] = math.sqrt(0.5)
        vectors[1, -1] = math.sqrt(0.5) * 1j
    return torch.complex(torch.full_like(frequencies, REAL_PARTS[measure]), frequencies), vectors


def _clip(B: Tensor, limit: float, gauge: Gauge) -> Tensor:
    if gauge == "lapack":
        return torch.complex(B.real, B.imag.clamp(min=-limit, max=limit))
    return torch.sgn(B) * B.abs().clamp(max=limit)
