"""Diagonal plus low-rank systems that are written down directly: the initialisations of S4D, and S4 built upon them."""
# ruff: noqa: N803, N806 -- A, B, H, N, P, V are the names of the literature and of the reference functions.

from __future__ import annotations

import torch
from jaxtyping import Complex
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_s4.hippo.nplr import Gauge, nplr
from pararnn_s4.initialisation.spectra import INITS, MEASURES, imaginary_part, input_vector, matched, real_part, require_known
from pararnn_s4.placement import draw, has_numbers, place, require_pairs, require_precision


def dplr(
    init: str = "hippo",
    N: int = 64,
    rank: int = 1,
    H: int = 1,
    dtype: torch.dtype = torch.float,
    real_random: bool = False,
    real_scale: float = 1.0,
    imag_random: bool = False,
    imag_scale: float = 1.0,
    B_random: bool = False,
    B_init: str = "constant",
    B_scale: float = 1.0,
    P_scale: float = 1.0,
    normalize: bool = False,
    *,
    B_clip: float | None = None,
    gauge: Gauge = "input",
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Complex[Tensor, "H half"], Complex[Tensor, "rank H half"], Complex[Tensor, "H half"], Complex[Tensor, "H N half"]]:
    """A, P, B, V of `H` systems `diag(A) - P P*` with half states of `N / 2` conjugate pairs; real and imaginary parts of A are <= 0.

    `init` names the frequencies -Im A: `lin` pi n, `inv` N/pi (N/(2n+1) - 1), `inv2` N/pi (N/(n+1) - 1), `quad` (2n+1)^2/pi, `rand`
    log-normal, `real` none, `legs` (or `hippo`) those of HiPPO-LegS, `fourier` (or `fout`) those of HiPPO-FouT. Long names: `linear`,
    `inverse`, `inverse2`, `quadratic`, `random`. The real part is -1/2 (FouT's own, 0, is had by `real_scale=0`), but -(n+1) for `real`;
    `real_random` draws it uniformly from (-1, 0), for `real` from (-N/2, 0). `imag_random` puts uniform numbers in the place of n, so it
    has no effect where n does not occur: `rand`, `real`, `legs`, `fourier`. The scales come last.

    With `legs` and `fourier`, B and P are those of HiPPO, whatever `B_init` says (`B_clip` and `gauge` as in `nplr`): `legs` without
    random parts is HiPPO-LegS itself, in diagonal form with `P_scale=0` (B is not halved then, as in state-spaces). Otherwise P is random
    and B is `constant` 1, `random`, `alternating` (-1)^n, `unit-cw` or `unit-ccw` exp(-+2 pi i n/N), or `legs`: B and P of LegS, matched
    by the order of frequencies. `normalize` scales B so that a constant input gives outputs of unit variance for a random C.

    V is the eigenbasis where there is one (`legs`, `fourier`), else the first half of the identity.

    Raises:
        ConfigError: unknown names, odd `N`, negative `real_scale` or `imag_scale`, a rank or number of systems below 1, the retired
            `B_random`, `normalize` with an entry of A that is 0.
        DTypeError: `dtype` is neither float32 nor float64.

    Source: Gu et al., "On the parameterization and initialization of diagonal state space models", 2022.
    """
    require_precision(dtype)
    require_pairs(N)
    require_known(init, B_init)
    _check(rank, H, real_scale, imag_scale, B_random)
    spectrum, shape = INITS[init], (H, N // 2)
    decay = real_scale * real_part(spectrum, shape, random=real_random, dtype=dtype, generator=generator)
    frequencies = imag_scale * imaginary_part(spectrum, shape, random=imag_random, dtype=dtype, generator=generator)
    A = torch.complex(-decay, -frequencies)
    V = torch.eye(N, N // 2, dtype=torch.complex128, device="cpu")
    if spectrum in MEASURES:
        _, rows, B, V = nplr(spectrum, N, rank, torch.float64, B_clip=B_clip, gauge=gauge, device="cpu")
        P, B = rows.unsqueeze(1).expand(rank, *shape), B.expand(shape)
    elif B_init in ("legs", "hippo"):
        _, rows, B, _ = nplr("legs", N, rank, torch.float64, B_clip=B_clip, gauge=gauge, device="cpu")
        P, B = matched(rows, frequencies), matched(B, frequencies)
    else:
        B = input_vector(B_init, shape, dtype=dtype, generator=generator)
        P = draw("normal", (rank, *shape), dtype.to_complex(), generator)
    B = B_scale * B
    if normalize:
        B = _normalized(A, B)
    A, P, B, V = (place(tensor, dtype, device).contiguous() for tensor in (A, P_scale * P, B, V.expand(H, N, N // 2)))
    return A, P, B, V


def _check(rank: int, H: int, real_scale: float, imag_scale: float, B_random: bool) -> None:
    if rank < 1 or H < 1:
        raise ConfigError(f"there must be at least one system and a correction of rank at least 1, got H={H} and rank={rank}; P_scale=0 removes it")
    if real_scale < 0 or imag_scale < 0:
        raise ConfigError(
            f"scales are factors of decay rates and frequencies and cannot be negative, got real_scale={real_scale} and imag_scale={imag_scale}"
        )
    if B_random:
        raise ConfigError("B_random has been without effect in lrnnx and state-spaces; pass B_init='random'")


def _normalized(A: Tensor, B: Tensor) -> Tensor:
    if has_numbers(A) and bool((A == 0).any()):
        raise ConfigError("normalize divides by A, but an entry of A is 0 (its response to a constant input is unbounded); raise real_scale above 0")
    # The response to a constant 1, then its variance under a random C; 2 for the conjugate partners.
    response = B / A
    return B / (2 * response.abs().square().sum(-1, keepdim=True)).sqrt()
