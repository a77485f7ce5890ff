"""The three products by their definitions, in plain PyTorch: the oracle of every other backend.

Each holds the whole matrix of the product, `(groups, copies, state, length)` values, once and for every gradient. Any device, any order of
derivative, every transform of torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.selection import Request


def reasons(request: Request) -> tuple[str, ...]:
    """No obstacles: it runs wherever PyTorch does."""
    return ()


def probe() -> tuple[str, ...] | None:
    """One product of each kind, on the CPU."""
    one = torch.ones(1, 1, 1, dtype=torch.complex64)
    cauchy(one, torch.zeros(1, 2, dtype=torch.complex64), one[0], conj=True)
    vandermonde_transpose(vandermonde(one, one[0], 2, conj=True), one[0])
    return None


def cauchy(v: Tensor, z: Tensor, w: Tensor, *, conj: bool) -> Tensor:
    """`sum_n v[g, h, n] / (z[h, l] - w[h, n])`, with the conjugate pairs when `conj`; `(groups, copies, length)`.

    `v` `(groups, copies, state)`, `w` `(copies, state)`, `z` `(1 or copies, length)`, all complex.
    """
    nodes = z.unsqueeze(-2)
    result = (v.unsqueeze(-1) / (nodes - w.unsqueeze(-1))).sum(-2)
    if conj:
        result = result + (v.conj().unsqueeze(-1) / (nodes - w.conj().unsqueeze(-1))).sum(-2)
    return result


def vandermonde(v: Tensor, x: Tensor, length: int, *, conj: bool) -> Tensor:
    """`sum_n v[g, h, n] exp(x[h, n] l)`, twice its real part when `conj`; `v` `(groups, copies, state)` -> `(groups, copies, length)`."""
    result = torch.einsum("ghn,hnl->ghl", v, _powers(x, length))
    return 2 * result.real if conj else result


def vandermonde_transpose(u: Tensor, x: Tensor) -> Tensor:
    """`sum_l u[g, h, l] exp(x[h, n] l)`; `u` `(groups, copies, length)`, real or complex -> complex `(groups, copies, state)`."""
    return torch.einsum("ghl,hnl->ghn", u.to(x.dtype), _powers(x, u.shape[-1]))


def _powers(x: Tensor, length: int) -> Tensor:
    """`exp(x l)` for `l = 0 .. length - 1`; `(copies, state)` -> `(copies, state, length)`."""
    return torch.exp(x.unsqueeze(-1) * torch.arange(length, device=x.device))
