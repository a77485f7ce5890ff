"""A path on the orthogonal group or a Stiefel manifold, mapped from any path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from pararnn.errors import ConfigError, ShapeError
from pararnn_nanode.manifolds.householder import reflections
from pararnn_nanode.manifolds.skew import cayley, exponential
from pararnn_nanode.paths.base import WeightPath
from pararnn_nanode.paths.precision import widened

MAPS: dict[str, Callable[[Tensor], Tensor]] = {"householder": reflections, "cayley": cayley, "matrix_exp": exponential}


class OrthogonalPath(WeightPath):
    """`W(t)` with orthonormal columns (`W^H W = I`), or rows where it is wide, from the weights `base(t)` of the same shape.

    A square `W` has orthonormal columns and rows. Weights of more dimensions count as matrices `(out, the rest)`; for a convolution that bounds the
    kernel, it does not make the whole convolution orthogonal. Computed in float64 and rounded once.

    What it gives to a neural ODE `dx/dt = s(W(t) x)` with `|s'| <= 1`: gradients shrink and grow by at most `exp(T)` over a time `T`. They are not
    preserved; a linear equation that preserves norms needs a skew `W`, not an orthogonal one.

    Args:
        base: the path that is mapped.
        map: "householder", one reflection for each column, as in the paper; "cayley", by far the cheapest; "matrix_exp".
        sign: factor of the last column (row), 1 or -1. It picks the component of O(n), whose two sides no path can leave: square weights have the
            determinant `sign`, with "householder" `sign * (-1)**n`.

    Source: Davis et al. (2020), arXiv 2005.01906, section 2.5.
    """

    def __init__(self, base: WeightPath, *, map: Literal["householder", "cayley", "matrix_exp"] = "householder", sign: Literal[1, -1] = 1) -> None:
        super().__init__(base.shape, span=base.span)
        if len(base.shape) < 2:
            raise ShapeError(f"an OrthogonalPath needs a base of two or more dimensions, got shape {base.shape}")
        if map not in MAPS:
            raise ConfigError(f"map must be one of {', '.join(MAPS)}, got {map!r}")
        if sign not in (1, -1):
            raise ConfigError(f"sign must be 1 or -1, got {sign!r}")
        self.base = base
        self.map = map
        self.sign = sign

    @property
    def n_matrices(self) -> int:
        return self.base.n_matrices

    @property
    def determinant(self) -> int | None:
        """Which component of O(n) the path of a real base lies in, 1 or -1; None for weights that are not square."""
        n, p = self.shape[0], torch.Size(self.shape[1:]).numel()
        return None if n != p else self.sign * ((-1) ** n if self.map == "householder" else 1)

    def values(self, times: Tensor, anchors: Tensor) -> Tensor:
        weights = self.base.values(times, anchors)
        tall = widened(weights).flatten(times.ndim + 1)
        wide = tall.shape[-2] < tall.shape[-1]
        frame = MAPS[self.map](tall.mH if wide else tall)
        if self.sign == -1:
            frame = torch.cat([frame[..., :-1], -frame[..., -1:]], -1)
        return (frame.mH if wide else frame).to(weights.dtype).reshape(weights.shape)

    def reset_parameters(self) -> None:
        """Draw new parameters of the base."""
        reset = getattr(self.base, "reset_parameters", None)
        if not callable(reset):
            raise ConfigError(f"the base of this path, a {type(self.base).__name__}, has no reset_parameters")
        reset()

    def edges(self) -> tuple[float, ...]:
        return self.base.edges()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, map={self.map!r}, sign={self.sign}"
