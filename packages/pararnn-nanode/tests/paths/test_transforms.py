"""Every weight path under compilation, vmap and differentiation."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from pararnn_nanode import BucketPath, ConstantPath


class Read(nn.Module):
    """A path whose call is a read of its weights, so that `functional_call` can make it."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def forward(self, times):
        return self.path.grid(times)


def test_one_graph_compiles_forward_and_backward(path, times):
    torch._dynamo.reset()
    compiled = torch.compile(path.grid, fullgraph=True, backend="aot_eager")
    parameters = list(path.parameters())
    expected = path.grid(times)
    found = compiled(times)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weight = torch.randn_like(expected)
    gradients = [torch.autograd.grad((w * weight).sum(), parameters) for w in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


def test_vmap_over_parameters_equals_a_loop(path, times):
    read = Read(path)
    stacked = {name: torch.stack([value, 0.9 * value + 0.05, 0.5 * value]).detach() for name, value in read.named_parameters()}

    def loss(parameters):
        weights = functional_call(read, parameters, (times,))
        return weights.square().sin().sum(), weights

    together = vmap(torch.func.grad(loss, has_aux=True))(stacked)
    for i in range(3):
        alone = torch.func.grad(loss, has_aux=True)({name: value[i] for name, value in stacked.items()})
        assert torch.equal(alone[1], loss({name: value[i] for name, value in stacked.items()})[1])
        torch.testing.assert_close({name: value[i] for name, value in together[0].items()}, alone[0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(together[1][i], alone[1], rtol=1e-12, atol=1e-12)


def test_vmap_over_times_equals_a_grid(path, times):
    torch.testing.assert_close(vmap(path.grid)(times), path.grid(times), rtol=1e-12, atol=1e-12)


def test_first_and_second_derivatives_are_those_of_finite_differences(path, times):
    read = Read(path)
    names = [name for name, _ in read.named_parameters()]
    inputs = [parameter.detach().clone().requires_grad_() for parameter in read.parameters()]

    def weights(*parameters):
        return functional_call(read, dict(zip(names, parameters, strict=True)), (times[1:4],))

    torch.autograd.gradcheck(weights, inputs, fast_mode=True)
    torch.autograd.gradgradcheck(lambda *parameters: weights(*parameters).sin(), inputs, fast_mode=True)


def test_weights_are_differentiable_in_time(path, times):
    if isinstance(path, (ConstantPath, BucketPath)):
        pytest.skip("its weights do not depend on time, or jump")
    inside = times[1:4].clone().requires_grad_()
    torch.autograd.gradcheck(path.grid, inside, fast_mode=True)
    torch.autograd.gradgradcheck(lambda t: path.grid(t).sin(), inside, fast_mode=True)
