"""First derivatives only, and never a wrong one."""

import pytest
import torch

from pararnn.errors import DifferentiationError
from pararnn_nanode.depth.solve import integrate
from pararnn_nanode.integrate import fixed


@pytest.mark.parametrize("parallel", ["newton", "picard", "windowed"])
def test_a_second_derivative_is_refused(dense, path, parallel):
    field, x = dense(), torch.randn(2, 5, requires_grad=True)
    (first,) = torch.autograd.grad(integrate(field, x, path(70), parallel=parallel).x.square().sum(), x, create_graph=True)
    with pytest.raises(DifferentiationError, match="parallel=None gives derivatives of any order") as caught:
        torch.autograd.grad(first.square().sum(), [x, *field.parameters()])
    assert "NewtonConfig" not in str(caught.value)


@pytest.mark.parametrize("parallel", ["newton", "picard", "windowed"])
def test_transforms_are_served_by_the_walk(dense, path, parallel):
    field, x = dense(), torch.randn(3, 5)

    def loss(solve):
        return torch.func.vmap(torch.func.grad(lambda state: solve(field, state, path(70)).x.square().sum()))(x)

    torch.testing.assert_close(loss(lambda *args: integrate(*args, parallel=parallel)), loss(fixed.integrate), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("parallel", ["newton", "windowed"])
def test_a_backward_pass_may_be_repeated(dense, path, parallel):
    field, x = dense(), torch.randn(2, 5, requires_grad=True)
    states = integrate(field, x, path(70), parallel=parallel).x
    first, second = (torch.autograd.grad(states.square().sum(), x, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_nothing_is_kept_without_gradients(dense, path):
    with torch.no_grad():
        states = integrate(dense(), torch.randn(2, 5), path(70), parallel="newton").x
    assert not states.requires_grad


@pytest.mark.parametrize("parallel", ["newton", "picard", "windowed"])
def test_an_answer_that_depends_on_nothing_differentiable_requires_no_gradient(dense, path, parallel):
    field = dense().requires_grad_(False)
    assert not integrate(field, torch.randn(2, 5), path(70), parallel=parallel).x.requires_grad
