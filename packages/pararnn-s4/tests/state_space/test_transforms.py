"""Transforms of torch.func over the parameters of a model."""

import pytest
import torch
from torch.func import functional_call, grad, hessian, jacrev, vmap

from pararnn_s4.state_space.diagonal import DiagonalSSM
from pararnn_s4.state_space.dplr import DPLRSSM

# Torch says of some of its own functions that it maps them one by one.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

MODELS = {
    "diagonal": (DiagonalSSM, {}),
    "powers": (DPLRSSM, {}),
    "cauchy": (DPLRSSM, {"method": "cauchy"}),
    "cauchy-rank-two": (DPLRSSM, {"method": "cauchy", "init": "legt", "rank": 2}),
    "cauchy-real": (DPLRSSM, {"method": "cauchy", "is_real": True, "init": "dplr-real"}),
}


@pytest.fixture(params=MODELS)
def ssm(request):
    kind, options = MODELS[request.param]
    return kind(2, d_state=4, dtype=torch.float64, **options)


@pytest.mark.parametrize("length", [7, 8])
def test_gradients_of_many_weights_at_once_are_those_of_each(ssm, length):
    weights = torch.randn(3, 1, 2, length, dtype=torch.float64)
    parameters = {name: parameter.detach() for name, parameter in ssm.named_parameters()}

    def loss(values, weight):
        return (functional_call(ssm, values, (length,)) * weight).square().sum()

    mapped = vmap(grad(loss), in_dims=(None, 0))(parameters, weights)
    for index, weight in enumerate(weights):
        for name, gradient in grad(loss)(parameters, weight).items():
            torch.testing.assert_close(mapped[name][index], gradient, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ["A_real", "B", "inv_dt"])
def test_second_derivatives_are_the_same_forward_and_backward(ssm, name):
    def loss(value):
        return functional_call(ssm, {name: value}, (6,)).square().sum()

    value = getattr(ssm, name).detach()
    torch.testing.assert_close(hessian(loss)(value), jacrev(grad(loss))(value), rtol=1e-10, atol=1e-12)
