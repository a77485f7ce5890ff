"""`f = activation(a(t) * x + b(t) + U(t) u)`: channels that do not see one another, with an exact diagonal solve over depth."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pararnn.errors import ConfigError, ShapeError
from pararnn.structures import Diagonal
from pararnn_nanode.fields.base import Weights
from pararnn_nanode.fields.layer import Activation, LayerField
from pararnn_nanode.paths.base import WeightPath
from pararnn_nanode.paths.linear import LinearPath


class DiagonalField(LayerField):
    """`f(t, x) = activation(a(t) * x + b(t))`, each channel alone; mix channels before and after the block.

    Args:
        dim: channels of the state, the last dimension of `x`.
        path: weights `(dim,)`; a path with a `gain`, since weights of one dimension are taken for a bias, which starts at zero.
        bias: a path `(dim,)`, or None.
        input: a path `(dim, inputs)` for inputs `u` `(*batch, inputs)`, or None.
        activation: a name such as `"tanh"`, a function of tensors without parameters, or None for a linear equation.

    Raises:
        ConfigError: the path was made without a gain, so that the field would be zero; `gain=0.0` says that this is meant.
    """

    structure = Diagonal
    elementwise = True

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
        if path.shape != (dim,):
            raise ShapeError(f"a DiagonalField of {dim} channels needs a path of shape {(dim,)}, got {path.shape}")
        if isinstance(path, LinearPath) and path.gain is None:
            raise ConfigError(
                f"a DiagonalField scales its state by this {type(path).__name__}, whose {dim} weights are all zero at first, as those of a bias are; "
                f"make the path with gain=1.0, or with gain=0.0 where zero is meant"
            )
        if input is not None and (len(input.shape) != 2 or input.shape[0] != dim):
            raise ShapeError(f"the input of a DiagonalField of {dim} channels needs a path of shape ({dim}, inputs), got {input.shape}")

    def product(self, weight: Tensor, x: Tensor) -> Tensor:
        lead = weight.ndim - 2
        if x.ndim == lead + 1:
            return (weight @ x.unsqueeze(-1)).squeeze(-1)
        return F.linear(x, weight) if lead == 0 else (x.flatten(lead, -2) @ weight.mT).reshape(*x.shape[:-1], self.dim)

    def evaluate(self, x: Tensor, weights: Weights) -> Tensor:
        scale = weights[0]
        lead = scale.ndim
        if lead > 1:
            scale = self.spread(scale, x.ndim)
        if len(weights) == 1:
            pre = scale * x
        else:
            drive = weights[1]
            pre = torch.addcmul(self.spread(drive, x.ndim) if drive.ndim == lead > 1 else drive, scale, x)
        return pre if self._activate is None else self._activate(pre)
