"""Gradients: for states, times, parameters and what a function closes over, in every way to have them."""

import copy
import weakref

import pytest
import torch
from torch import nn

from pararnn.errors import DifferentiationError
from pararnn_nanode import BucketPath, ConstantPath, DenseField, TrigPath, odeint, odeint_adjoint
from pararnn_nanode.integrate.adaptive import integrate

WAYS = ["backprop", "checkpoint", "adjoint"]
EXACT = ["backprop", "checkpoint"]
METHODS = [("dopri5", {}), ("rk4", {"step_size": 0.05})]


def decay(t, y):
    return -y


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("method", "options"), METHODS, ids=["dopri5", "rk4"])
def test_both_ends_of_time_have_gradients_of_the_right_sign(way, method, options):
    if way == "adjoint" and method == "rk4":
        options = {"step_size": 0.02}
    t = torch.tensor([0.0, 1.0], requires_grad=True)
    found = odeint(decay, torch.ones(1), t, method=method, options=options, gradient=way)
    (grad,) = torch.autograd.grad(found[-1].sum(), t)
    torch.testing.assert_close(grad, torch.tensor([0.36787944, -0.36787944]), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("way", WAYS)
def test_every_time_has_its_own_gradient_also_where_times_repeat_and_fall(way):
    t = torch.tensor([1.0, 1.0, 0.6, 0.6, 0.2], requires_grad=True)
    found = odeint(lambda t, y: y * torch.cos(3 * t), torch.ones(1), t, gradient=way)
    exact = torch.exp((torch.sin(3 * t) - torch.sin(3 * t[0])) / 3)
    weights = torch.arange(1.0, 6.0)
    torch.testing.assert_close(torch.autograd.grad(found[:, 0] @ weights, t), torch.autograd.grad(exact @ weights, t), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_times_of_samples_have_gradients(way):
    t = torch.tensor([[0.0, 1.0], [0.5, 0.1]], requires_grad=True)
    found = odeint(decay, torch.ones(2), t, gradient=way)
    exact = torch.exp(t[:, 0] - t[:, 1])
    torch.testing.assert_close(torch.autograd.grad(found[-1].sum(), t), torch.autograd.grad(exact.sum(), t), rtol=1e-6, atol=1e-6)


def test_a_gradient_for_times_that_are_equal_is_that_of_the_field():
    t = torch.tensor([0.0, 0.0], requires_grad=True)
    found = odeint(decay, torch.full((1,), 3.0), t)
    torch.testing.assert_close(torch.autograd.grad(found[-1].sum(), t)[0], torch.tensor([3.0, -3.0]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("span", [(0.0, 1.0), (1.0, 0.0)], ids=["forward", "backward"])
def test_gradients_of_a_field_whose_weights_jump_are_those_of_a_fine_fixed_walk(way, span):
    field = DenseField(3, BucketPath((3, 3), 3), bias=TrigPath(3, 1))
    x = torch.randn(4, 3, requires_grad=True)
    parameters = tuple(field.parameters())
    found = torch.autograd.grad(integrate(field, x, span, gradient=way).last.square().sum(), (x, *parameters))
    walked = x
    for k in range(300):
        low = k / 300 if span[1] > span[0] else 1 - (k + 1) / 300
        length = (span[1] - span[0]) / 300
        start = torch.tensor(low if length > 0 else low - length)
        anchor = torch.tensor(low)
        slopes = []
        for part, place in ((0.0, 0.0), (0.5, 0.5), (0.5, 0.5), (1.0, 1.0)):
            point = walked + length * part * slopes[-1] if slopes else walked
            slopes.append(field.evaluate(point, field.weights(start + place * length, anchor)))
        walked = walked + length / 6 * (slopes[0] + 2 * slopes[1] + 2 * slopes[2] + slopes[3])
    torch.testing.assert_close(found, torch.autograd.grad(walked.square().sum(), (x, *parameters)), rtol=1e-5, atol=1e-6)


def test_checkpointed_gradients_are_those_of_backprop_to_rounding(swing):
    x = torch.randn(4, 3, requires_grad=True)
    t = torch.linspace(0, 2, 9).requires_grad_()
    found = [torch.autograd.grad(odeint(swing, x, t, gradient=way).square().sum(), (x, t, swing.weight)) for way in EXACT]
    torch.testing.assert_close(found[0], found[1], rtol=1e-11, atol=1e-11)


def test_checkpoints_and_the_adjoint_keep_less_than_backprop():
    def saved(way):
        field = DenseField(8, ConstantPath((8, 8)))
        alive = weakref.WeakSet()

        class Kept:
            def __init__(self, tensor):
                # A tensor that knows its graph would keep it alive.
                self.tensor = tensor.detach()
                alive.add(self)

        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
            states = integrate(field, torch.randn(64, 8, requires_grad=True), [0.0, 20.0], gradient=way).x
        return sum(kept.tensor.numel() for kept in alive) * states.shape[0]

    backprop, checkpoint, adjoint = map(saved, WAYS)
    assert checkpoint < backprop / 5
    assert adjoint < backprop / 50


@pytest.mark.parametrize("way", EXACT)
def test_second_derivatives_are_right(way):
    rate = torch.tensor(0.5, requires_grad=True)
    y0 = torch.tensor([2.0], requires_grad=True)
    found = odeint(lambda t, y: rate * y, y0, [0.0, 1.0], gradient=way, rtol=1e-10, atol=1e-12)
    (first,) = torch.autograd.grad(found[-1].sum(), rate, create_graph=True)
    second = torch.autograd.grad(first, (rate, y0))
    exact = torch.exp(rate.detach())
    torch.testing.assert_close((first, *second), (2 * exact, 2 * exact, exact.reshape(1)), rtol=1e-8, atol=0.0)


def test_a_second_derivative_of_the_adjoint_is_an_error(swing):
    found = odeint_adjoint(swing, torch.ones(1, 3), torch.tensor([0.0, 1.0]))
    with pytest.raises(DifferentiationError, match="no second derivative; use gradient='backprop'"):
        torch.autograd.grad(found.sum(), swing.weight, create_graph=True)


@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_a_tensor_that_the_adjoint_would_forget_is_an_error(method):
    weight = torch.tensor(1.0, requires_grad=True)
    with pytest.raises(DifferentiationError, match="parameters="):
        odeint_adjoint(lambda t, y: -weight * y, torch.ones(1), [0.0, 1.0], method=method, adjoint_params=())


@pytest.mark.parametrize("way", WAYS)
def test_a_tensor_that_a_function_closes_over_gets_its_gradient(way):
    weight = torch.tensor(1.0, requires_grad=True)
    twice = weight * 1.0
    found = odeint(lambda t, y: -twice * y, torch.ones(1), [0.0, 1.0], gradient=way, parameters=(twice,))
    assert torch.autograd.grad(found[-1].sum(), weight)[0].item() == pytest.approx(-0.36787944, rel=1e-6)


def test_naming_the_parameters_of_a_module_does_not_count_them_twice(swing):
    y0 = torch.randn(2, 3)
    found = [
        torch.autograd.grad(odeint_adjoint(swing, y0, [0.0, 1.0], adjoint_params=named)[-1].sum(), swing.weight)
        for named in (None, tuple(swing.parameters()))
    ]
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("way", WAYS)
def test_a_function_may_differentiate_inside_itself(way):
    strength = nn.Parameter(torch.tensor(2.0))

    def force(t, y):
        with torch.enable_grad():
            y = y if y.requires_grad else y.requires_grad_()
            return -torch.autograd.grad(0.5 * strength * y.square().sum(), y, create_graph=True)[0]

    found = odeint(force, torch.ones(2), [0.0, 1.0], gradient=way, parameters=(strength,))
    torch.testing.assert_close(found[-1], torch.full((2,), -2.0).exp(), rtol=1e-6, atol=0.0)
    (grad,) = torch.autograd.grad(found[-1].sum(), strength)
    assert grad.item() == pytest.approx(-2 * torch.tensor(-2.0).exp().item(), rel=1e-5)


def test_parameters_that_are_not_used_do_not_disturb_the_adjoint():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Parameter(torch.tensor(1.0))
            self.idle = nn.Linear(3, 4)

        def forward(self, t, y):
            return -self.used * y

    module = Idle()
    odeint_adjoint(module, torch.ones(2), torch.tensor([0.0, 1.0]))[-1].sum().backward()
    assert module.used.grad.item() == pytest.approx(-2 * 0.36787944, rel=1e-6)
    assert module.idle.weight.grad is None or not module.idle.weight.grad.any()
    assert copy.deepcopy(module).used.item() == 1.0


@pytest.mark.parametrize("way", WAYS)
def test_parameters_given_by_functional_call_get_the_gradient(swing, way):
    class Solve(nn.Module):
        def __init__(self):
            super().__init__()
            self.func = swing

        def forward(self, y):
            return odeint(self.func, y, [0.0, 1.0], gradient=way)[-1]

    other = torch.randn(3, 3, requires_grad=True)
    y0 = torch.randn(2, 3)
    found = torch.func.functional_call(Solve(), {"func.weight": other * 1.0}, (y0,))
    exact = odeint(lambda t, y: torch.tanh(y @ other) + torch.sin(3 * t) * y, y0, [0.0, 1.0])[-1]
    torch.testing.assert_close(torch.autograd.grad(found.sum(), other), torch.autograd.grad(exact.sum(), other), rtol=1e-6, atol=1e-6)


def test_parameters_that_were_changed_before_the_backward_pass_are_noticed(swing):
    found = odeint_adjoint(swing, torch.ones(1, 3), torch.tensor([0.0, 1.0]))
    with torch.no_grad():
        swing.weight.mul_(2.0)
    with pytest.raises(DifferentiationError, match=r"parameter .*weight was edited in place"):
        found.sum().backward()


def test_the_gradient_is_that_of_the_steps_taken(swing):
    y0 = torch.randn(2, 3, requires_grad=True)
    assert torch.autograd.gradcheck(lambda y: odeint(swing, y, [0.0, 0.7], method="euler", options={"step_size": 0.1}), y0)


@pytest.mark.parametrize("way", WAYS)
def test_inputs_of_a_field_have_gradients(way):
    field = DenseField(3, ConstantPath((3, 3)), input=ConstantPath((3, 2)))
    u = torch.randn(4, 2, requires_grad=True)
    x = torch.randn(4, 3)
    found = torch.autograd.grad(integrate(field, x, [0.0, 1.0], u=u, gradient=way).last.sum(), (u, *field.input.parameters()))
    closed = odeint(lambda t, y: field.evaluate(y, field.weights(t, u=u)), x, [0.0, 1.0])[-1]
    torch.testing.assert_close(found, torch.autograd.grad(closed.sum(), (u, *field.input.parameters())), rtol=1e-6, atol=1e-6)
