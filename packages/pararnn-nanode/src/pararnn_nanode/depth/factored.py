"""Dense layers over all steps without their weights: `sum_s phi_s(t) C_s x` as one product.

A path that is linear in its coefficients `C_s` gives weights `W(t_k)` that are many times as large as the states they are applied to, and with few
samples each is read for little. Here the states are spread over the functions of time instead, `(phi_s(t_k) x_k)` for all `s`, and multiplied by all
coefficients at once; the gradient of the coefficients is one product as well.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.structures import Dense, Structure
from pararnn_nanode.depth.jacobian import linearize
from pararnn_nanode.fields.base import Field, Weights
from pararnn_nanode.fields.dense import DenseField
from pararnn_nanode.fields.layer import LayerField
from pararnn_nanode.paths.linear import LinearPath

# Samples times functions of time up to which the larger product is the cheaper one.
MOST = 40
SINGLE = (torch.float32, torch.float64)


def factored(field: Field, x: Tensor) -> Field:
    """`field`, or the same function of time and state by products that never hold the weights of all steps, where that is cheaper."""
    known = type(field).evaluate is DenseField.evaluate and type(field).weights is LayerField.weights
    if not known or not isinstance(field, DenseField) or not isinstance(field.path, LinearPath):
        return field
    alike = type(field.path).values is LinearPath.values and field.path.coefficients.dtype == x.dtype and x.dtype in SINGLE
    rows = x.numel() // x.shape[-1]
    return FactoredField(field) if alike and rows * field.path.columns <= MOST else field


class FactoredField(Field):
    """A dense field whose weights are the functions of time of its path; `evaluate` reads the coefficients."""

    structure = Dense

    def __init__(self, field: DenseField) -> None:
        super().__init__()
        self.field = field

    @property
    def path(self) -> LinearPath:
        """The path of the field; not a second name in the tree of modules, where `functional_call` would put back the wrong one of two."""
        path = self.field.path
        if not isinstance(path, LinearPath):
            raise TypeError(f"the path is a {type(path).__name__}, not a LinearPath")
        return path

    def weights(self, times: Tensor, anchors: Tensor | None = None, u: Tensor | None = None) -> Weights:
        times = times.to(torch.float64)
        basis = self.path.basis(times, times if anchors is None else anchors.to(torch.float64))
        coefficients = self.path.coefficients
        return (basis.to(coefficients.dtype).to(coefficients.device), *self._drives(times, anchors, u))

    def evaluate(self, x: Tensor, weights: Weights) -> Tensor:
        basis, *drives = weights
        lead = basis.ndim - 1
        scale = basis.reshape(*basis.shape[:-1], *(1,) * (x.ndim - lead - 1), basis.shape[-1], 1)
        spread = (scale * x.unsqueeze(-2)).flatten(-2)
        pre = spread @ self.path.coefficients.mT.flatten(0, 1)
        for drive in drives:
            pre = pre + (self.field.spread(drive, x.ndim) if drive.ndim == lead + 1 else drive)
        return pre if self.field._activate is None else self.field._activate(pre)

    def _drives(self, times: Tensor, anchors: Tensor | None, u: Tensor | None) -> Weights:
        """Bias and inputs, as the field makes them beside its matrix."""
        field = self.field
        bias = None if field.bias is None else field.bias.grid(times, anchors)
        if u is None:
            # The field itself says what is wrong where it needs inputs.
            return field.weights(times, anchors)[1:] if field.input is not None else () if bias is None else (bias,)
        pushed = field._pushed(times, anchors, u)
        return (pushed if bias is None else pushed + field.spread(bias, pushed.ndim),)

    def plain(self, weights: Weights) -> tuple[Field, Weights]:
        """The dense field, and its weights where these are."""
        basis, *drives = weights
        matrix = basis @ self.path.coefficients.flatten(1)
        return self.field, (matrix.reshape(*basis.shape[:-1], *self.path.shape), *drives)

    def linearize(self, x: Tensor, weights: Weights) -> tuple[Tensor, Structure]:
        """`f` and its derivative, see `pararnn_nanode.depth.jacobian.linearize`."""
        field, dense = self.plain(weights)
        return linearize(field, x, dense)
