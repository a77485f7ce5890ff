"""Products of Householder reflections, one for each column of a matrix."""

from __future__ import annotations

import torch
from torch import Tensor


def reflections(u: Tensor) -> Tensor:
    """The first `p` columns of `H(u_1) ... H(u_p)`, where `u_i` are the columns of `u` `(..., n, p)` and `H(u) = I - 2 u u^H / (u^H u)`.

    Columns of unit length, orthogonal to each other; the determinant of the whole product is `(-1)**p`. A reflection does not change when its
    vector is scaled, so its gradient grows as the vector shrinks, and at zero it is undefined: a column of zeros reflects along the first axis,
    without gradient, so that the result stays on the manifold.

    Computed as `I - V T V^H` with `T` triangular, from a few products of matrices and one triangular solve instead of one small step a reflection.
    """
    n, p = u.shape[-2:]
    axis = torch.zeros(n, 1, dtype=u.dtype, device=u.device)
    axis[0] = 1
    # Scaled by its largest entry first, a vector of tiny or huge entries has a length.
    largest = u.abs().amax(-2, keepdim=True).detach()
    empty = largest == 0
    u = torch.where(empty, axis, u / torch.where(empty, 1, largest))
    v = u / torch.linalg.vector_norm(u, dim=-2, keepdim=True)
    eye = torch.eye(n, p, dtype=u.dtype, device=u.device)
    upper = (v.mH @ v).triu(1) + 0.5 * torch.eye(p, dtype=u.dtype, device=u.device)
    frame: Tensor = eye - v @ torch.linalg.solve_triangular(upper, v[..., :p, :].mH, upper=True)
    return frame
