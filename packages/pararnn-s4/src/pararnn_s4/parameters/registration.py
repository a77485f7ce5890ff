"""Putting the parameters of a state-space system on a module, under the names and in the form that lrnnx and state-spaces use."""
# ruff: noqa: N803 -- A, B, C, H, N, P are the names of the literature and of the reference functions.

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError, DTypeError, InputError, ShapeError
from pararnn_s4.parameters.transforms import inv_transform
from pararnn_s4.placement import has_numbers

logger = logging.getLogger(__name__)

# One number for all parameters, or numbers by name; None leaves it to the optimiser.
Setting: TypeAlias = float | Mapping[str, float | None] | None

# The names that settings are given by, for each parameter: its own first, then that of its group.
NAMES = {"inv_dt": ("inv_dt", "dt"), "C": ("C",), "B": ("B",), "A_real": ("A_real", "A"), "A_imag": ("A_imag", "A"), "P": ("P", "A")}
# Real parts that a diagonalisation leaves may be positive by rounding.
REAL_PART_SLACK = 1e-4


def register_ssm_params(
    module: nn.Module,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    inv_dt: Tensor,
    P: Tensor | None,
    H: int,
    n_ssm: int,
    N: int,
    channels: int,
    rank: int,
    dt_fast: bool,
    real_transform: str,
    imag_transform: str,
    is_real: bool,
    verbose: bool,
    l_max: int | None,
    diag: bool = False,
    *,
    lr: Setting = None,
    wd: Setting = 0.0,
) -> int:
    """Register `inv_dt`, `C`, `B`, `A_real`, `A_imag` and, unless `diag`, `P` on `module`; return how many features share a system.

    A and B are `(n_ssm, N)`, C is `(channels, H, N)` (or broadcasts to it), P is `(rank, n_ssm, N)`, `inv_dt` is `(H, 1)` or `(H, N)` as
    `init_dt` gives it. N is the number of entries that are kept: half of the conjugate pairs. Complex parameters are stored as real ones
    with a last dimension of 2, B with a first dimension of 1, and C as the conjugate of what is given: what is stored multiplies the state
    (see `init_ssm_dplr`). The real and imaginary parts of -A go through their transforms, `dt_fast` stores asinh of `inv_dt`. `is_real`
    stores the real parts alone and no `A_imag`. The parameters own their memory.

    `lr` and `wd` are a number or a mapping by parameter name (`dt`, `A`, `B`, `C`, `P`, or the stored names; P follows A unless named).
    They are left on each parameter as `_optim`, for `param_groups`; a mapping says nothing about names that it lacks. `lr=0` makes a
    buffer. `wd={"dt": 0.0, "A": 0.0, "B": 0.0}` is what state-spaces does: it leaves the decay of C to the optimiser.

    Raises:
        ShapeError: shapes that do not belong together.
        DTypeError: parameters of different precision.
        InputError: a real or imaginary part of A that is positive.
        ConfigError: unknown names in `lr` or `wd`, negative values, an unknown transform.
    """
    low_rank = None if diag else P
    if not diag and P is None:
        raise ConfigError("a system that is not diagonal needs P; pass it, or diag=True")
    _check(A, B, C, inv_dt, low_rank, H=H, n_ssm=n_ssm, N=N, channels=channels, rank=rank)
    if verbose:
        logger.info("state-space system with (H, N, L) = (%d, %d, %s)", H, N, l_max)

    def stored(tensor: Tensor) -> Tensor:
        if is_real:
            return tensor.real if tensor.is_complex() else tensor
        return torch.view_as_real((tensor if tensor.is_complex() else tensor.to(tensor.dtype.to_complex())).resolve_conj())

    imaginary = A.imag if A.is_complex() else torch.zeros_like(A)
    tensors = {
        "inv_dt": torch.asinh(inv_dt) if dt_fast else inv_dt,
        "C": stored(C.conj().expand(channels, H, N)),
        "B": stored(B.unsqueeze(0)),
        "A_real": inv_transform(-A.real, real_transform),
    }
    if not is_real:
        tensors["A_imag"] = inv_transform(-imaginary, imag_transform)
    if low_rank is not None:
        tensors["P"] = stored(low_rank)
    rates, decays = (_by_parameter(setting, name) for setting, name in ((lr, "lr"), (wd, "wd")))
    for name, tensor in tensors.items():
        _register(module, name, tensor, rates[name], decays[name])
    return H // n_ssm


def _register(module: nn.Module, name: str, tensor: Tensor, lr: float | None, wd: float | None) -> None:
    owned = tensor.detach().clone(memory_format=torch.contiguous_format)
    if lr == 0.0:
        module.register_buffer(name, owned)
        return
    parameter = nn.Parameter(owned)
    # An attribute, because the training loops of lrnnx and state-spaces look for it there.
    parameter._optim = {key: value for key, value in (("lr", lr), ("weight_decay", wd)) if value is not None}  # type: ignore[attr-defined]
    module.register_parameter(name, parameter)


def _by_parameter(setting: Setting, what: str) -> dict[str, float | None]:
    """The value for each parameter."""
    values: dict[str, float | None]
    if not isinstance(setting, Mapping):
        values = dict.fromkeys(NAMES, setting)
    else:
        known = {alias for aliases in NAMES.values() for alias in aliases}
        unknown = sorted(set(setting) - known)
        if unknown:
            raise ConfigError(f"{what} names {', '.join(unknown)}, but the parameters are {', '.join(sorted(known))}")
        values = {name: next((setting[alias] for alias in aliases if alias in setting), None) for name, aliases in NAMES.items()}
    for name, value in values.items():
        if value is not None and value < 0:
            raise ConfigError(f"{what} of {name} cannot be negative, got {value}")
    return values


def _check(A: Tensor, B: Tensor, C: Tensor, inv_dt: Tensor, P: Tensor | None, *, H: int, n_ssm: int, N: int, channels: int, rank: int) -> None:
    if n_ssm < 1 or H % n_ssm:
        raise ShapeError(f"H={H} features cannot share n_ssm={n_ssm} systems evenly; n_ssm must divide H")
    expected: dict[str, tuple[Tensor, tuple[int, ...]]] = {"A": (A, (n_ssm, N)), "B": (B, (n_ssm, N))}
    if P is not None:
        expected["P"] = (P, (rank, n_ssm, N))
    for name, (tensor, shape) in expected.items():
        if tuple(tensor.shape) != shape:
            raise ShapeError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}; N={N} counts one of each conjugate pair")
    if inv_dt.shape not in ((H, 1), (H, N)):
        raise ShapeError(f"inv_dt must have shape {(H, 1)} or {(H, N)}, got {tuple(inv_dt.shape)}; see init_dt")
    if C.ndim != 3 or any(have not in (1, want) for have, want in zip(C.shape, (channels, H, N), strict=True)) or C.shape[-1] != N:
        raise ShapeError(f"C must have shape {(channels, H, N)} or broadcast to it over channels and features, got {tuple(C.shape)}")
    precisions = {tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype for tensor in (A, B, C, inv_dt, *(() if P is None else (P,)))}
    if len(precisions) > 1:
        raise DTypeError(
            f"parameters of one system must share a precision, got {sorted(map(str, precisions))}; see `dtype` of init_dt, `cdtype` of init_ssm_dplr"
        )
    if has_numbers(A) and not bool((A.real < REAL_PART_SLACK).all() and (not A.is_complex() or bool((A.imag <= 0).all()))):
        raise InputError("A must have real parts below 0 and imaginary parts of at most 0 (keep that half of each conjugate pair)")
