"""`f = activation(W [x; t] + b)`: constant weights that see the time as one more channel."""

from __future__ import annotations

from torch import Tensor

from pararnn_nanode.fields.base import Weights
from pararnn_nanode.fields.dense import DenseField


class AppendTimeField(DenseField):
    """`f(t, x) = activation(W [x; t] + b)`, the "AppNODE" of the paper: the time is appended to the state.

    Since `W [x; t] = W_x x + w_t t`, it is a dense field whose bias moves linearly in time while its matrix stands still; with `w_t = 0` it is the
    autonomous field. The paper has a constant path; any path of the shape works.

    Args:
        dim: channels of the state, the last dimension of `x`.
        path: weights `(dim, dim + 1)`, the last column `w_t` belongs to the time.
        bias, input, activation: as in `DenseField`.

    Source: Davis et al., "Time dependence in non-autonomous neural ODEs" (2020), arXiv 2005.01906.
    """

    @staticmethod
    def path_shape(dim: int) -> tuple[int, ...]:
        return (dim, dim + 1)

    def weights(self, times: Tensor, anchors: Tensor | None = None, u: Tensor | None = None) -> Weights:
        whole, *drives = super().weights(times, anchors, u)
        matrix, column = whole[..., :-1], whole[..., -1]
        moved = column * times.to(column.dtype).unsqueeze(-1)
        if not drives:
            return matrix, moved
        drive = drives[0]
        return matrix, drive + (moved if drive.ndim == moved.ndim else self.spread(moved, drive.ndim))
