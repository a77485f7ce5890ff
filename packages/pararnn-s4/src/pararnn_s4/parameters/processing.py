"""From the stored parameters to the numbers that are computed with."""
# ruff: noqa: N803, N806 -- A, B, C, P, Q are the names of the literature and of the reference functions.

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_s4.parameters.transforms import param_transform


def process_ssm_params(
    A_real: Float[Tensor, "n_ssm N"],
    A_imag: Float[Tensor, "n_ssm N"] | None,
    B: Float[Tensor, "1 n_ssm N *2"],
    C: Float[Tensor, "channels H N *2"],
    inv_dt: Float[Tensor, "H copies"],
    real_transform: str = "exp",
    imag_transform: str = "none",
    dt_transform: str = "exp",
    dt_fast: bool = False,
    is_real: bool = False,
    repeat_factor: int = 1,
    rate: float | Tensor = 1.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Time steps dt `(H, 1 or N)`, A `(H, N)`, B `(1, H, N)`, C `(channels, H, N)` and dt A `(H, N)`, from what is stored.

    The stored form is that of `register_ssm_params`. With `is_real` everything is real and there is no `A_imag`; else A, B and C are
    complex, in the precision of what is stored. float16 and bfloat16 have no complex partner that can compute: they are processed in
    float32. `rate` multiplies dt: 2 for inputs sampled half as often.

    Raises:
        ConfigError: no `A_imag` for a complex system, an unknown transform, a rate that is not positive.
    """
    if not isinstance(rate, Tensor) and not rate > 0:
        raise ConfigError(f"rate is the new sampling interval over the old one, so it must be positive, got {rate}")
    A_real, B, C, inv_dt = (_computable(tensor) for tensor in (A_real, B, C, inv_dt))
    real = -param_transform(A_real, real_transform)
    if is_real:
        A = real
    elif A_imag is None:
        raise ConfigError("a complex system needs A_imag; pass it, or is_real=True")
    else:
        A = torch.complex(real, -param_transform(_computable(A_imag), imag_transform))
        B, C = torch.view_as_complex(B), torch.view_as_complex(C)
    dt = param_transform(torch.sinh(inv_dt) if dt_fast else inv_dt, dt_transform) * rate
    A, B = _shared(A, repeat_factor), _shared(B, repeat_factor)
    return dt, A, B, C, dt * A


def process_dplr_params(
    A_real: Float[Tensor, "n_ssm N"],
    A_imag: Float[Tensor, "n_ssm N"] | None,
    B: Float[Tensor, "1 n_ssm N *2"],
    C: Float[Tensor, "channels H N *2"],
    P: Float[Tensor, "rank n_ssm N *2"],
    inv_dt: Float[Tensor, "H copies"],
    real_transform: str = "exp",
    imag_transform: str = "none",
    dt_transform: str = "exp",
    dt_fast: bool = False,
    is_real: bool = False,
    repeat_factor: int = 1,
    rate: float | Tensor = 1.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Time steps, A, B, C as in `process_ssm_params`, then P `(rank, H, N)` and its conjugate Q, in memory of its own.

    Raises:
        ConfigError: as in `process_ssm_params`.
    """
    dt, A, B, C, _ = process_ssm_params(
        A_real, A_imag, B, C, inv_dt, real_transform, imag_transform, dt_transform, dt_fast, is_real, repeat_factor, rate
    )
    P = _shared(_computable(P) if is_real else torch.view_as_complex(_computable(P)), repeat_factor)
    return dt, A, B, C, P, P.conj().resolve_conj()


def _computable(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _shared(tensor: Tensor, copies: int) -> Tensor:
    """`tensor (..., systems, N)` for every feature: feature h uses system `h % systems`."""
    return tensor if copies == 1 else tensor.repeat(*(1,) * (tensor.ndim - 2), copies, 1)
