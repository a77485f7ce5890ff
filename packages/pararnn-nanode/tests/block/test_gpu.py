"""Blocks on a GPU give what they give on the CPU."""

import copy

import pytest
import torch

from pararnn_nanode import NANODE, BucketPath, ConvField, DenseField, DiagonalField, TrigPath

pytestmark = pytest.mark.gpu

OPTIONS = [
    {},
    {"method": "rk4", "gradient": "checkpoint"},
    {"method": "rk4", "gradient": "adjoint"},
    {"method": "reversible_heun", "gradient": "reversible"},
    {"method": "alf", "gradient": "reversible"},
    {"method": "dopri5"},
    {"method": "dopri5", "gradient": "adjoint"},
    {"parallel": "picard"},
    {"parallel": "windowed", "window": 4},
]


def dense():
    return DenseField(4, BucketPath((4, 4), 2), bias=TrigPath(4, 1, gain=1.0)), (3, 4)


def diagonal():
    return DiagonalField(4, TrigPath(4, 1, gain=1.0)), (3, 4)


def convolution():
    return ConvField(4, 3, TrigPath((4, 4, 3, 3), 1)), (3, 4, 5, 5)


def answer(block, x, t):
    states = block(x, t)
    return [states.detach().cpu(), *(gradient.cpu() for gradient in torch.autograd.grad(states.square().sum(), (x, *block.parameters())))]


@pytest.mark.parametrize("t", [None, [0.25, 1.0]], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("make", [dense, diagonal, convolution])
def test_states_and_gradients_are_those_of_the_cpu(make, options, t):
    field, shape = make()
    block = NANODE(field, 16, **options)
    x = torch.randn(shape)
    expected = answer(block, x.clone().requires_grad_(), t)
    found = answer(copy.deepcopy(block).cuda(), x.cuda().requires_grad_(), t)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_every_sample_may_have_an_end_of_its_own(method):
    field, shape = dense()
    block = NANODE(field, 16, method=method)
    x, ends = torch.randn(shape), torch.tensor([[0.25], [0.5], [1.0]])
    expected = block(x, ends)
    torch.testing.assert_close(block.cuda()(x.cuda(), ends.cuda()).cpu(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_events_are_found(method):
    block = NANODE(lambda t, x: torch.ones_like(x), 16, method=method)
    event = block.solve(torch.zeros(2, device="cuda", dtype=torch.float64), event=lambda t, x: x[0] - 0.3).event
    assert float(event) == pytest.approx(0.3)
