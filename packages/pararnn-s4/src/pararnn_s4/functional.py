"""The kernel functions under the names, and with the arguments, that users of lrnnx and state-spaces know.

Each is one of the products of `pararnn_s4.kernels.api` with a backend by name. `get_..._kernel()` give the product that chooses its backend
at every call, by the tensors of that call.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from pararnn_s4.kernels.api import cauchy, vandermonde, vandermonde_transpose


def cauchy_naive(v: Tensor, z: Tensor, w: Tensor, *, conj: bool = True) -> Tensor:
    """`cauchy` by its definition; holds the whole matrix."""
    return cauchy(v, z, w, conj=conj, backend="naive")


def cauchy_keops(v: Tensor, z: Tensor, w: Tensor, *, conj: bool = True) -> Tensor:
    """`cauchy` by KeOps, on the device of the tensors."""
    return cauchy(v, z, w, conj=conj, backend="keops")


def log_vandermonde_naive(v: Tensor, x: Tensor, L: int, conj: bool = True) -> Tensor:  # noqa: N803
    """`vandermonde` by its definition; without `conj` the complex sum."""
    return vandermonde(v, x, L, conj=conj, backend="naive")


def log_vandermonde_keops(v: Tensor, x: Tensor, L: int, conj: bool = True) -> Tensor:  # noqa: N803
    """`vandermonde` by KeOps, on the device of the tensors."""
    return vandermonde(v, x, L, conj=conj, backend="keops")


def log_vandermonde_transpose_naive(u: Tensor, v: Tensor, x: Tensor, L: int | None = None) -> Tensor:  # noqa: N803
    """`vandermonde_transpose` by its definition."""
    return vandermonde_transpose(u, v, x, L, backend="naive")


def log_vandermonde_transpose_keops(u: Tensor, v: Tensor, x: Tensor, L: int | None = None) -> Tensor:  # noqa: N803
    """`vandermonde_transpose` by KeOps, on the device of the tensors."""
    return vandermonde_transpose(u, v, x, L, backend="keops")


def get_cauchy_kernel() -> Callable[..., Tensor]:
    """`cauchy`, which takes `(v, z, w)` and chooses the best backend for them."""
    return cauchy


def get_vandermonde_kernel() -> Callable[..., Tensor]:
    """`vandermonde`, which takes `(v, x, L)` and chooses the best backend for them."""
    return vandermonde


def get_vandermonde_transpose_kernel() -> Callable[..., Tensor]:
    """`vandermonde_transpose`, which takes `(u, v, x, L)` and chooses the best backend for them."""
    return vandermonde_transpose
