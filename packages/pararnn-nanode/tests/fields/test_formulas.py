"""Derivatives by formula against those of autograd."""

import pytest
import torch

from pararnn_nanode import AppendTimeField, ConstantPath, DenseField

DIM, INPUTS = 4, 3


@pytest.fixture(autouse=True)
def _float64():
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(default)


def path(*shape, dtype=None):
    return ConstantPath(shape, gain=1.0, dtype=dtype)


def check(field, x, weights):
    weights = tuple(leaf.detach().requires_grad_() for leaf in weights)
    start = x.detach().requires_grad_()
    result, derive = field.differentiate(start.detach(), weights)
    value = field.evaluate(start, weights)
    torch.testing.assert_close(result, value, rtol=0, atol=0)
    cotangent = torch.randn_like(value)
    expected = torch.autograd.grad(value, (start, *weights), cotangent)
    by_x, by_weights = derive(cotangent, range(len(weights)))
    torch.testing.assert_close((by_x, *by_weights), expected)


@pytest.mark.parametrize("shape", [(DIM,), (5, DIM), (2, 3, DIM), (0, DIM)], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "relu", None])
def test_a_dense_field_knows_its_derivative(activation, bias, shape):
    field = DenseField(DIM, path(DIM, DIM), bias=path(DIM) if bias else None, activation=activation)
    check(field, torch.randn(shape), field.weights(torch.tensor(0.3)))


def test_the_derivative_reaches_inputs():
    field = DenseField(DIM, path(DIM, DIM), bias=path(DIM), input=path(DIM, INPUTS))
    check(field, torch.randn(5, DIM), field.weights(torch.tensor(0.3), u=torch.randn(5, INPUTS)))


def test_the_derivative_reaches_an_input_that_the_batch_shares():
    field = DenseField(DIM, path(DIM, DIM), input=path(DIM, INPUTS))
    check(field, torch.randn(5, DIM), field.weights(torch.tensor(0.3), u=torch.randn(1, INPUTS)))


def test_the_derivative_of_complex_states_is_that_of_torch():
    field = DenseField(DIM, path(DIM, DIM, dtype=torch.complex128), activation="tanh")
    check(field, torch.randn(5, DIM, dtype=torch.complex128), field.weights(torch.tensor(0.3)))


def test_an_appended_time_has_the_same_formula():
    field = AppendTimeField(DIM, path(DIM, DIM + 1))
    check(field, torch.randn(5, DIM), field.weights(torch.tensor(0.3)))


def test_autograd_is_asked_where_no_formula_fits():
    class Doubled(DenseField):
        def evaluate(self, x, weights):
            return 2 * super().evaluate(x, weights)

    x, time = torch.randn(5, DIM), torch.tensor(0.3)
    for field in (
        Doubled(DIM, path(DIM, DIM)),
        DenseField(DIM, path(DIM, DIM), activation="gelu"),
        DenseField(DIM, path(DIM, DIM), activation=torch.sin),
    ):
        assert field.differentiate(x, field.weights(time)) is None
    own = DenseField(DIM, path(DIM, DIM))
    assert own.differentiate(x, own.weights(torch.rand(5))) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert own.differentiate(x, own.weights(time)) is None
