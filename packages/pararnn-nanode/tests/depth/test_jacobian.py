"""Formulas for Jacobians of fields are what differentiation gives."""

import pytest
import torch

from pararnn.structures import Dense
from pararnn_nanode.depth.jacobian import linearize
from pararnn_nanode.fields.append_time import AppendTimeField
from pararnn_nanode.fields.dense import DenseField
from pararnn_nanode.fields.diagonal import DiagonalField
from pararnn_nanode.paths.constant import ConstantPath
from pararnn_nanode.paths.trigonometric import TrigPath

ACTIVATIONS = ["tanh", "relu", "sigmoid", "softplus", "gelu", "silu", None, torch.sin]
MAKERS = {
    "dense": lambda **options: DenseField(4, TrigPath((4, 4), 1), **options),
    "diagonal": lambda **options: DiagonalField(4, TrigPath(4, 1, gain=1.0), **options),
    "with time": lambda **options: AppendTimeField(4, ConstantPath((4, 5)), **options),
}


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda one: getattr(one, "__name__", str(one)))
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("kind", MAKERS)
def test_the_formula_is_the_derivative(kind, batch, activation):
    field = MAKERS[kind](bias=TrigPath(4, 1, gain=1.0), activation=activation)
    weights = field.weights(torch.linspace(0, 1, 6))
    x = torch.randn(6, *batch, 4)
    value, jacobian = linearize(field, x, weights)
    truth = field.structure.of(lambda state: field.evaluate(state, weights), x)
    torch.testing.assert_close(value, field.evaluate(x, weights))
    torch.testing.assert_close(jacobian.to_dense(), truth.to_dense())


class Doubled(DenseField):
    """Evaluates otherwise than the field it inherits from."""

    def evaluate(self, x, weights):
        return 2 * super().evaluate(x, weights)


class Knowing(DenseField):
    """Has a formula of its own."""

    def linearize(self, x, weights):
        return self.evaluate(x, weights), Dense(torch.full((*x.shape, 4), 7.0))


def test_a_subclass_that_evaluates_otherwise_does_not_inherit_the_formula():
    field = Doubled(4, TrigPath((4, 4), 1))
    weights, x = field.weights(torch.zeros(1)), torch.randn(1, 4)
    truth = torch.autograd.functional.jacobian(lambda state: field.evaluate(state, weights), x)[0, :, 0]
    torch.testing.assert_close(linearize(field, x, weights)[1].to_dense()[0], truth)


def test_a_field_may_bring_its_own_formula():
    field = Knowing(4, TrigPath((4, 4), 1))
    assert float(linearize(field, torch.randn(1, 4), field.weights(torch.zeros(1)))[1].to_dense().mean()) == 7.0
