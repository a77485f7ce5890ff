"""The three products in plain PyTorch, block by block: any device, no matrix of the whole length, nothing to compile."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.selection import Request
from pararnn.transforms import inside_transform
from pararnn_s4.kernels import cauchy_op, node_chunks, two_level, vandermonde_op
from pararnn_s4.kernels.vandermonde_op import moments_of, product_of

CAUCHY = cauchy_op.Engine(node_chunks.product, node_chunks.gradients)
VANDERMONDE = vandermonde_op.Engine(two_level.product, two_level.moments)


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
    """`sum_n v[g, h, n] / (z[h, l] - w[h, n])`, with the conjugate pairs when `conj`; see `naive.cauchy`."""
    if _looked_into():
        return node_chunks.whole(v, z, w, conj=conj)
    return cauchy_op.cauchy_by(CAUCHY, v, z, w, conj=conj)


def vandermonde(v: Tensor, x: Tensor, length: int, *, conj: bool) -> Tensor:
    """`sum_n v[g, h, n] exp(x[h, n] l)`, twice its real part when `conj`; `v` `(groups, copies, state)` -> `(groups, copies, length)`."""
    if _looked_into():
        return product_of(VANDERMONDE, v, x, length, conj)
    return vandermonde_op.vandermonde_by(VANDERMONDE, v, x, length, conj=conj)


def vandermonde_transpose(u: Tensor, x: Tensor) -> Tensor:
    """`sum_l u[g, h, l] exp(x[h, n] l)`; `u` `(groups, copies, length)`, real or complex -> complex `(groups, copies, state)`."""
    if _looked_into():
        return moments_of(VANDERMONDE, u, x, (True, False))[0]
    return vandermonde_op.transpose_by(VANDERMONDE, u, x)


def _looked_into() -> bool:
    """Whether a compiler or a transform follows the operations, so that they need no derivatives of their own."""
    return torch.compiler.is_compiling() or inside_transform()
