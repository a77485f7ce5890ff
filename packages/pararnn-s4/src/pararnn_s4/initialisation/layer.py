"""The parameters that a layer starts with."""
# ruff: noqa: N803, N806 -- A, B, C, H, N, P, V are the names of the literature and of the reference functions.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Complex
from torch import Tensor

from pararnn.errors import ConfigError, DTypeError
from pararnn_s4.initialisation.mixtures import combination
from pararnn_s4.placement import draw, place


def init_ssm_dplr(
    N: int,
    H: int,
    n_ssm: int,
    channels: int,
    rank: int,
    init: str | Sequence[str],
    deterministic: bool = False,
    cdtype: torch.dtype = torch.cfloat,
    *,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
    **init_args: Any,
) -> tuple[Complex[Tensor, "n_ssm half"], Complex[Tensor, "rank n_ssm half"], Complex[Tensor, "n_ssm half"], Complex[Tensor, "channels H half"]]:
    """A, P, B of `n_ssm` systems and C for `H` features, all of dtype `cdtype`; feature h uses system `h % n_ssm`.

    C is complex normal of unit variance, or with `deterministic` the vector that reads the first coefficient of the HiPPO basis (the
    first entry of the state, where the initialisation has no basis). Like B it is a vector in the eigenbasis, `C = V* c`, so outputs are
    `2 Re(conj(C) . x)`; `register_ssm_params` stores the conjugate. `init` and `init_args` as in `combination`.

    Raises:
        ConfigError: `n_ssm` does not divide `H`, fewer than one channel, a `dtype` beside `cdtype`, and what `combination` refuses.
        DTypeError: `cdtype` is neither complex64 nor complex128.
    """
    if cdtype not in (torch.complex64, torch.complex128):
        raise DTypeError(f"cdtype is the dtype of the parameters, torch.complex64 or torch.complex128, got {cdtype}")
    if "dtype" in init_args:
        raise ConfigError("cdtype decides the dtype of all parameters; leave dtype out")
    if n_ssm < 1 or channels < 1:
        raise ConfigError(f"there must be at least one system and one channel, got n_ssm={n_ssm} and channels={channels}")
    if H < 1 or H % n_ssm:
        raise ConfigError(f"H={H} features cannot share n_ssm={n_ssm} systems evenly; n_ssm must divide H")
    A, P, B, V = combination(init, N, rank, n_ssm, dtype=cdtype.to_real(), device=device, generator=generator, **init_args)
    if deterministic:
        C = V[:, 0, :].conj().resolve_conj().repeat(channels, H // n_ssm, 1)
    else:
        C = place(draw("normal", (channels, H, N // 2), cdtype, generator), cdtype, device)
    return A, P, B, C
