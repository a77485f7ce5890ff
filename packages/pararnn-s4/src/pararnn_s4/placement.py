"""Where and how the results of the builders are put: everything is computed in float64 on the CPU, then cast and moved once.

So the numbers do not depend on the device, and a layer built under `torch.device("meta")` or on a GPU gets the same ones.
"""
# ruff: noqa: N803 -- N is the name of the literature and of the reference functions.

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from pararnn.errors import ConfigError, DTypeError


def place(tensor: Tensor, dtype: torch.dtype, device: torch.device | str | None) -> Tensor:
    """`tensor` in the real or complex form of `dtype`, on `device` (None: torch's default device)."""
    return tensor.to(dtype=dtype.to_complex() if tensor.is_complex() else dtype, device=torch.get_default_device() if device is None else device)


def has_numbers(tensor: Tensor) -> bool:
    """Whether there are numbers in `tensor` to check: a tensor on the meta device, or a fake one that a tracer works with, has none."""
    return not (tensor.is_meta or is_fake(tensor))


def require_precision(dtype: torch.dtype) -> None:
    """Refuse dtypes that have no complex partner to compute in.

    Raises:
        DTypeError: `dtype` is not float32 or float64.
    """
    if dtype not in (torch.float32, torch.float64):
        raise DTypeError(f"state-space matrices are built in torch.float32 or torch.float64, got {dtype}; build in float32 and cast the module")


def require_pairs(N: int) -> None:
    """Refuse state sizes that are no number of conjugate pairs.

    Raises:
        ConfigError: `N` is odd or below 2.
    """
    if N < 2 or N % 2:
        raise ConfigError(f"the state is kept as conjugate pairs, so N (d_state) must be even and at least 2, got N={N}; pass N={max(2, N + N % 2)}")


def draw(kind: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator | None) -> Tensor:
    """`kind` ("uniform" or "normal") random numbers, drawn in `dtype` and returned on the CPU in double precision.

    Drawn in the dtype that was asked for because a seed then gives the numbers that it gives in lrnnx and state-spaces.
    """
    device = "cpu" if generator is None else generator.device
    sample = torch.rand if kind == "uniform" else torch.randn
    numbers = sample(shape, dtype=dtype, device=device, generator=generator)
    return numbers.to(device="cpu", dtype=torch.complex128 if dtype.is_complex else torch.float64)
