"""`f = activation(W(t) x + b(t) + U(t) u)`: a dense layer whose weights move with time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pararnn.errors import ShapeError
from pararnn.structures import Dense
from pararnn_nanode.fields.base import Formula, Weights
from pararnn_nanode.fields.layer import BY_RESULT, Activation, LayerField
from pararnn_nanode.paths.base import WeightPath


class DenseField(LayerField):
    """`f(t, x) = activation(W(t) x + b(t))`, the field of the paper.

    Args:
        dim: channels of the state, the last dimension of `x`.
        path: weights `(dim, dim)`.
        bias: a path `(dim,)`, or None.
        input: a path `(dim, inputs)` for inputs `u` `(*batch, inputs)`, or None.
        activation: a name such as `"tanh"`, a function of tensors without parameters, or None for a linear equation.

    Source: Davis et al., "Time dependence in non-autonomous neural ODEs" (2020), arXiv 2005.01906.
    """

    structure = Dense

    def __init__(
        self,
        dim: int,
        path: WeightPath,
        *,
        bias: WeightPath | None = None,
        input: WeightPath | None = None,
        activation: str | Activation | None = "tanh",
    ) -> None:
        super().__init__(dim, path, bias=bias, input=input, activation=activation)
        wanted = self.path_shape(dim)
        if path.shape != wanted:
            raise ShapeError(f"a {type(self).__name__} of {dim} channels needs a path of shape {wanted}, got {path.shape}")
        if input is not None and (len(input.shape) != 2 or input.shape[0] != dim):
            raise ShapeError(f"the input of a {type(self).__name__} of {dim} channels needs a path of shape ({dim}, inputs), got {input.shape}")

    @staticmethod
    def path_shape(dim: int) -> tuple[int, ...]:
        """The shape that the weights of `dim` channels have."""
        return (dim, dim)

    def product(self, weight: Tensor, x: Tensor) -> Tensor:
        lead = weight.ndim - 2
        if lead == 0:
            return F.linear(x, weight)
        if x.ndim == lead + 1:
            # A row times the transposed matrix is several times as fast as a matrix times a column, for many steps at once.
            return (x.unsqueeze(-2) @ weight.mT).squeeze(-2)
        return (x.flatten(lead, -2) @ weight.mT).reshape(*x.shape[:-1], weight.shape[-2])

    def evaluate(self, x: Tensor, weights: Weights) -> Tensor:
        # A walk comes here at every step with one matrix and one bias; that case is one operation and few questions.
        matrix = weights[0]
        drive = weights[1] if len(weights) == 2 else None
        if matrix.ndim == 2 and (drive is None or drive.ndim == 1):
            pre = F.linear(x, matrix, drive)
        else:
            pre = self.product(matrix, x)
            if drive is not None:
                pre = pre + (self.spread(drive, x.ndim) if drive.ndim == matrix.ndim - 1 else drive)
        return pre if self._activate is None else self._activate(pre)

    def differentiate(self, x: Tensor, weights: Weights) -> Formula | None:
        matrix = weights[0]
        drive = weights[1] if len(weights) == 2 else None
        plain = matrix.ndim == 2 and (drive is None or drive.ndim in (1, x.ndim))
        own = type(self).evaluate is DenseField.evaluate and type(self).product is DenseField.product
        if not (plain and own) or torch.is_autocast_enabled(x.device.type) or not (self.activation is None or self.activation in BY_RESULT):
            return None
        by_result = BY_RESULT[self.activation]
        result = self.evaluate(x, weights)

        def derive(cotangent: Tensor, wanted: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
            pulled = by_result(cotangent, result)
            rows = pulled.reshape(-1, self.dim)
            by_weights = []
            for place in wanted:
                if place == 0:
                    by_weights.append(rows.mT @ x.reshape(-1, self.dim).conj())
                else:
                    by_weights.append(rows.sum(0) if weights[1].ndim == 1 else pulled.sum_to_size(weights[1].shape))
            return pulled @ matrix.conj(), by_weights

        return result, derive
