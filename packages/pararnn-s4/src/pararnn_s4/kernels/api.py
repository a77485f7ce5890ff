"""The Cauchy and Vandermonde products: what is checked, which backend serves, and what comes back.

Half-precision inputs are computed in float32, also under autocast; otherwise the widest of the dtypes decides. Under `torch.compile` the
choice is made among the backends that consist of traceable torch operations: `"auto"` means `blocked` there, `naive` and `blocked` can
be named; another backend computes outside the graph, which `fullgraph=True` refuses with the reason.
"""

from __future__ import annotations

from torch import Tensor

from pararnn.errors import ShapeError
from pararnn.scans.dispatch import full_precision
from pararnn_s4.kernels.arrange import real_of, whole_number
from pararnn_s4.kernels.plans import plan_for


def cauchy(v: Tensor, z: Tensor, w: Tensor, *, conj: bool = True, backend: str = "auto") -> Tensor:
    """`sum_n v_n / (z - w_n)`, plus `conj(v_n) / (z - conj(w_n))` when `conj`: complex `(..., length)`.

    `v` and `w` `(..., state)`, `z` `(..., length)`; leading dimensions broadcast. Real arguments count as complex ones of imaginary part
    zero: with `conj` each real pole is counted twice. A node that meets a pole gives a value that is not finite, as a division by zero does;
    that is not searched for, because the search would wait for the device.

    Raises:
        ShapeError, DTypeError: arguments that do not fit.
        BackendError: `backend` cannot serve, with the reasons.
    """
    plan = plan_for("cauchy", v, w, z, length=_last(z), conj=conj, backend=backend)
    leading, dtype = plan.leading, plan.dtype
    with full_precision(w):
        product = plan.implementation(leading.numerators(v.to(dtype)), leading.shared(z.to(dtype)), leading.poles(w.to(dtype)), conj=conj)
    return leading.restore(product)


def vandermonde(v: Tensor, x: Tensor, L: int, *, conj: bool = True, backend: str = "auto") -> Tensor:
    """`2 Re sum_n v_n exp(x_n l)` for `l = 0 .. L - 1`, real `(..., L)`; without `conj` the complex sum itself.

    `v` and `x` `(..., state)`; leading dimensions broadcast. Real arguments count as complex ones of imaginary part zero, and the factor
    2 stays.

    Raises:
        ShapeError, DTypeError: arguments that do not fit, or an `L` that is no whole number of at least 1.
        BackendError: `backend` cannot serve, with the reasons.
    """
    L = whole_number(L, "L")
    plan = plan_for("vandermonde", v, x, length=L, conj=conj, backend=backend)
    leading, dtype = plan.leading, plan.dtype
    with full_precision(x):
        product = plan.implementation(leading.numerators(v.to(dtype)), leading.poles(x.to(dtype)), L, conj=conj)
    return leading.restore(product)


def vandermonde_transpose(u: Tensor, v: Tensor, x: Tensor, L: int | None = None, *, backend: str = "auto") -> Tensor:
    """`v_n sum_l u_l exp(x_n l)`, complex `(..., state)`: what inputs `u` leave in a diagonal state, the latest first.

    `u` `(..., length)`, `v` and `x` `(..., state)`; leading dimensions broadcast. No conjugate partners are added. `L`, where given,
    must be the length of `u`.

    Raises:
        ShapeError, DTypeError: arguments that do not fit, or `L` is not the length of `u`.
        BackendError: `backend` cannot serve, with the reasons.
    """
    plan = plan_for("vandermonde_transpose", u, x, v, length=_last(u), conj=False, backend=backend)
    if L is not None and u.shape[-1] != L:
        raise ShapeError(f"u has length {u.shape[-1]} but L={L}; pass u of shape (..., {L}), or leave L out")
    leading, dtype = plan.leading, plan.dtype
    with full_precision(x):
        sums = plan.implementation(leading.numerators(u.to(dtype if u.is_complex() else real_of(dtype))), leading.poles(x.to(dtype)))
    return v.to(dtype) * leading.restore(sums)


def _last(tensor: Tensor) -> int:
    """The size of the last dimension; 0 where there is none, which the plan objects to."""
    return tensor.shape[-1] if isinstance(tensor, Tensor) and tensor.ndim else 0
