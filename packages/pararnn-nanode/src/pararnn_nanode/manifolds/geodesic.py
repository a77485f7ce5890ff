"""Geodesics of the orthogonal group."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.errors import DTypeError
from pararnn_nanode.manifolds.checks import require_square, require_zero
from pararnn_nanode.paths.precision import widened


def geodesic(q: Tensor, omega: Tensor, t: float | Tensor) -> Tensor:
    """`Q exp(t Omega)` `(*t.shape, n, n)`, where a walk from `Q` in the direction `Q Omega` is after a time `t`.

    Computed in float64 and rounded once, to the dtype that `q` and `omega` have together.

    Args:
        q: an orthogonal (unitary) matrix `(n, n)`.
        omega: a skew (skew-Hermitian) matrix `(n, n)`.

    Raises:
        ShapeError: the matrices are not square or of different sizes.
        DTypeError: they are neither floating nor complex.
        InputError: `omega` is not skew by more than rounding; not looked at under `torch.compile` and transforms.

    Source: Davis et al. (2020), arXiv 2005.01906, section 2.5.
    """
    require_square(q, "the start of a geodesic")
    require_square(omega, "the direction of a geodesic", q.shape[-1])
    for name, matrix in (("start", q), ("direction", omega)):
        if not (matrix.is_floating_point() or matrix.is_complex()):
            raise DTypeError(f"the {name} of a geodesic is a floating or complex matrix, got {matrix.dtype}")
    require_zero((omega + omega.mH) / omega.detach().abs().amax().clamp(min=1), "the direction of a geodesic must be skew, Omega + Omega^H = 0")
    wide = widened(omega)
    times = torch.as_tensor(t, dtype=wide.real.dtype, device=omega.device)
    walked: Tensor = widened(q) @ torch.linalg.matrix_exp(times[..., None, None] * wide)
    return walked.to(torch.promote_types(q.dtype, omega.dtype))
