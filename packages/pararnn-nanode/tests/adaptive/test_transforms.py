"""Solves inside the transforms of torch.func."""

import weakref

import pytest
import torch

from pararnn.errors import DifferentiationError
from pararnn_nanode import BucketPath, CallableField, DenseField, odeint
from pararnn_nanode.integrate.adaptive import integrate

METHODS = [("dopri5", {}), ("rk4", {"step_size": 0.1})]


@pytest.mark.parametrize(("method", "options"), METHODS, ids=["dopri5", "rk4"])
def test_vmap_over_states_is_a_loop_over_them(swing, method, options):
    def solve(y):
        return odeint(swing, y, [0.0, 0.4, 1.0], method=method, options=options)

    y0 = torch.randn(3, 2, 3)
    loop = torch.stack([solve(y) for y in y0])
    torch.testing.assert_close(torch.func.vmap(solve)(y0), loop, rtol=1e-6, atol=1e-6)
    nested = torch.func.vmap(torch.func.vmap(solve))(y0)
    torch.testing.assert_close(nested, loop.transpose(1, 2), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("method", "options"), METHODS, ids=["dopri5", "rk4"])
def test_vmap_over_parameters_is_a_loop_over_them(swing, method, options):
    y0 = torch.randn(2, 3)

    def solve(weight):
        return odeint(lambda t, y: torch.tanh(y @ weight), y0, [0.0, 1.0], method=method, options=options)[-1]

    weights = torch.randn(4, 3, 3)
    torch.testing.assert_close(torch.func.vmap(solve)(weights), torch.stack([solve(w) for w in weights]), rtol=1e-6, atol=1e-6)


def test_vmap_over_end_times_is_a_loop_over_them():
    def solve(end):
        return odeint(lambda t, y: y * torch.cos(t), torch.ones(2), torch.stack((torch.zeros(()), end)))[-1]

    ends = torch.tensor([1.0, 2.0, -0.5])
    torch.testing.assert_close(torch.func.vmap(solve)(ends), torch.exp(torch.sin(ends)).unsqueeze(1).expand(3, 2), rtol=1e-6, atol=1e-6)


def test_vmap_over_end_times_refuses_jumps_that_it_cannot_see():
    field = DenseField(3, BucketPath((3, 3), 2))
    with pytest.raises(ValueError, match="give times \\(samples, times\\)"):
        torch.func.vmap(lambda end: integrate(field, torch.ones(3), torch.stack((torch.zeros(()), end))).last)(torch.ones(2))


@pytest.mark.parametrize("way", ["backprop", "checkpoint"])
def test_gradients_by_torch_func_are_those_of_autograd(swing, way):
    y0, one = torch.randn(3), torch.ones(())

    def solve(y, end=one):
        return odeint(swing, y, torch.stack((torch.zeros(()), end)), gradient=way)[-1]

    jacobian = torch.autograd.functional.jacobian(solve, y0)
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(transform(solve)(y0), jacobian, rtol=1e-6, atol=1e-7)
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(transform(solve, argnums=1)(y0, one), swing(one, solve(y0)).detach(), rtol=1e-5, atol=1e-6)


def test_gradients_of_every_sample_are_those_of_a_loop(swing):
    def loss(weight, y):
        return odeint(lambda t, y: torch.tanh(y @ weight), y, [0.0, 1.0])[-1].sum()

    weight, y0 = swing.weight.detach(), torch.randn(4, 3)
    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, y0)
    torch.testing.assert_close(found, torch.stack([torch.func.grad(loss)(weight, y) for y in y0]), rtol=1e-6, atol=1e-6)


def test_the_adjoint_refuses_transforms(swing):
    with pytest.raises(DifferentiationError, match="transforms of torch"):
        torch.func.grad(lambda y: odeint(swing, y, [0.0, 1.0], gradient="adjoint")[-1].sum())(torch.ones(3))


@pytest.mark.parametrize("way", ["backprop", "checkpoint", "adjoint"])
def test_a_solution_that_is_dropped_is_gone_at_once(swing, way):
    solution = integrate(CallableField(swing), torch.ones(3, requires_grad=True), [0.0, 1.0], gradient=way)
    solution.last.sum().backward()
    states = weakref.ref(solution.x)
    del solution
    assert states() is None
