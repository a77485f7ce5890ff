"""What is stored gives back the number, and nothing overflows on the way."""

import pytest
import torch

from pararnn.errors import ConfigError, InputError
from pararnn_s4 import inv_transform, param_transform

POSITIVE = torch.tensor([1e-4, 2e-4, 1e-3, 0.1, 0.5, 0.99], dtype=torch.float64)
LARGE = torch.tensor([1.0, 20.1, 36.0, 41.0, 89.0, 1303.27], dtype=torch.float64)


@pytest.mark.parametrize("transform", ["none", "exp", "sigmoid", "softplus"])
def test_positive_numbers_come_back(transform):
    torch.testing.assert_close(param_transform(inv_transform(POSITIVE, transform), transform), POSITIVE, rtol=1e-12, atol=0)


@pytest.mark.parametrize("transform", ["none", "exp", "relu", "softplus"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_large_numbers_come_back(transform, dtype):
    numbers = LARGE.to(dtype)
    back = param_transform(inv_transform(numbers, transform), transform)
    torch.testing.assert_close(back, numbers, rtol=8 * torch.finfo(dtype).eps, atol=0)


def test_numbers_above_the_offset_of_relu_come_back():
    numbers = torch.tensor([2e-4, 1e-3, 1.0], dtype=torch.float64)
    torch.testing.assert_close(param_transform(inv_transform(numbers, "relu"), "relu"), numbers, rtol=1e-12, atol=0)


def test_no_transform_changes_nothing_not_even_zero():
    numbers = torch.tensor([0.0, 1e-9, 3.0])
    assert torch.equal(inv_transform(numbers, "none"), numbers)


@pytest.mark.parametrize(("transform", "least"), [("exp", 1e-4), ("sigmoid", 1e-4), ("softplus", 1e-4), ("relu", 2e-4)])
def test_numbers_that_cannot_be_stored_are_raised_to_the_floor_with_a_gradient_that_is_alive(transform, least):
    stored = inv_transform(torch.zeros(1, dtype=torch.float64), transform).requires_grad_()
    value = param_transform(stored, transform)
    torch.testing.assert_close(value.item(), least, rtol=1e-9, atol=0)
    value.backward()
    assert stored.grad.item() > 0


def test_a_sigmoid_for_numbers_from_one_on_is_refused():
    with pytest.raises(InputError, match="sigmoid gives numbers below 1, but 3 is to be stored"):
        inv_transform(torch.tensor([0.5, 3.0]), "sigmoid")


@pytest.mark.parametrize("function", [inv_transform, param_transform])
def test_an_unknown_transform_is_refused(function):
    with pytest.raises(ConfigError, match="'square' is unknown; choose one of none, exp, relu, sigmoid, softplus"):
        function(torch.ones(1), "square")
