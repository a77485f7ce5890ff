"""What the adjoint of an adaptive method must not lose, count twice or miss."""

import pytest
import torch
from torch import nn

from pararnn.errors import DifferentiationError
from pararnn_nanode import NANODE, CallableField, odeint, odeint_adjoint
from pararnn_nanode.integrate.adaptive import integrate

START = torch.full((1,), 0.5, dtype=torch.float64)


class Sine(nn.Module):
    """`sin(w x) + u`, which counts its evaluations."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.7))
        self.register_buffer("scale", torch.tensor(1.0))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, t, x, u=0.0):
        self.count += 1
        return torch.sin(self.scale * self.w * x) + u


def from_a_parameter(way, what):
    """The gradient of `w` where something else was computed from it."""
    module = Sine()
    options = {}
    field = CallableField(module)
    times = torch.tensor([0.0, 1.0])
    if what == "input":
        options["u"] = module.w * 2 * torch.ones(1)
    elif what == "times of samples":
        times = torch.stack((torch.zeros(()), module.w * 1.5)).reshape(1, 2)
    elif what == "one declared tensor":
        twice = module.w * 2
        field = CallableField(lambda t, x: torch.sin(x * module.w) * twice, parameters=(twice, module.w))
    elif what == "a chain of declared tensors":
        twice = module.w * 2
        square = twice * module.w
        field = CallableField(lambda t, x: torch.sin(x * module.w) * twice + square, parameters=(module.w, square, twice))
    elif what == "a declared tensor that is read through another":
        twice = module.w * 2
        field = CallableField(lambda t, x: torch.sin(x * twice), parameters=(module.w,))
    found = integrate(field, START, times, gradient=way, **options).last.sum()
    return torch.autograd.grad(found, module.w)[0]


@pytest.mark.parametrize(
    "what",
    [
        "input",
        "times of samples",
        "one declared tensor",
        "a chain of declared tensors",
        "a declared tensor that is read through another",
    ],
)
def test_what_was_computed_from_a_parameter_is_counted_once(what):
    torch.testing.assert_close(from_a_parameter("adjoint", what), from_a_parameter("backprop", what), rtol=1e-6, atol=0.0)


def test_adjoint_params_that_were_computed_from_each_other_are_counted_once():
    def gradient(solve, **names):
        weight = torch.tensor(0.7, requires_grad=True)
        twice = weight * 2
        found = solve(lambda t, y: torch.sin(y) * twice * weight, START, [0.0, 1.0], **dict.fromkeys(names, (twice, weight)))
        return torch.autograd.grad(found[-1].sum(), weight)[0]

    torch.testing.assert_close(gradient(odeint_adjoint, adjoint_params=True), gradient(odeint), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("what", ["parameter", "declared", "declared and computed", "input"])
def test_a_hook_sees_the_whole_gradient_once(what):
    def gradient(hooked):
        module = Sine()
        weight = torch.tensor(0.7, requires_grad=True)
        u = torch.tensor([0.3], requires_grad=True)
        named = weight * 1.0 if what == "declared and computed" else weight
        field = CallableField(lambda t, x: torch.sin(named * x), parameters=(named,)) if what.startswith("declared") else CallableField(module)
        target = {"parameter": module.w, "input": u}.get(what, named)
        calls = []
        if hooked:
            target.register_hook(lambda grad: calls.append(grad) or 2 * grad)
        integrate(field, START, [0.0, 1.0], gradient="adjoint", u=None if what.startswith("declared") else u).last.sum().backward()
        assert len(calls) == int(hooked)
        return (weight if what.startswith("declared") else target).grad

    torch.testing.assert_close(gradient(True), 2 * gradient(False))


def test_a_gradient_that_a_declared_tensor_retains_is_the_whole_one():
    weight = torch.tensor(0.7, requires_grad=True)
    twice = weight * 2
    twice.retain_grad()
    integrate(CallableField(lambda t, x: -twice * x, parameters=(twice,)), torch.ones(1), [0.0, 1.0], gradient="adjoint").last.sum().backward()
    torch.testing.assert_close(twice.grad, -torch.exp(torch.tensor(-1.4)), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("backend", ["native", "torchdiffeq"])
def test_a_tensor_that_is_read_late_only_is_not_forgotten_in_silence(backend, torchdiffeq):
    weight = torch.tensor(0.7, requires_grad=True)
    field = CallableField(lambda t, x: torch.sin(x) * (weight if float(t) > 0.5 else 1.0), edges=(0.5,))
    block = NANODE(field, method="dopri5", gradient="adjoint", backend=backend)
    with pytest.raises(DifferentiationError, match="parameters="):
        block(START)


def test_a_tensor_read_late_by_a_field_with_derivatives_of_its_own_is_not_forgotten_in_silence():
    weight = torch.tensor(0.7, requires_grad=True)

    def func(t, x):
        point = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(torch.cos(point).sum(), point, create_graph=True)
        return -slope if float(t) < 0.5 else -slope * weight

    with pytest.raises(DifferentiationError, match=r"shapes \(\)"):
        integrate(CallableField(func, edges=(0.5,)), START, [0.0, 1.0], gradient="adjoint")
    assert torch.isfinite(integrate(CallableField(func, edges=(0.5,), parameters=(weight,)), START, [0.0, 1.0], gradient="adjoint").last).all()


def test_a_tensor_that_a_module_keeps_of_its_parameter_is_not_forgotten_in_silence():
    module = Sine()
    module.kept = module.w * 2
    module.forward = lambda t, x: torch.sin(module.kept * x)
    with pytest.raises(DifferentiationError, match="parameters="):
        integrate(CallableField(module), START, [0.0, 1.0], gradient="adjoint")


@pytest.mark.parametrize("way", ["checkpoint", "adjoint"])
@pytest.mark.parametrize("what", ["buffer", "input"])
def test_what_was_edited_before_the_backward_pass_is_noticed(way, what):
    module = Sine()
    u = torch.tensor([0.3])
    found = integrate(CallableField(module), START.clone().requires_grad_(), [0.0, 1.0], gradient=way, u=u).last
    (module.scale if what == "buffer" else u).mul_(3.0)
    with pytest.raises(DifferentiationError, match=r"buffer .* was edited in place"):
        found.sum().backward()


@pytest.mark.parametrize("way", ["checkpoint", "adjoint"])
def test_a_backward_pass_counts_nothing_a_second_time(way):
    module = Sine()
    block = NANODE(module, method="dopri5", gradient=way)
    both = block(START) + block(2 * START)
    counted = int(module.count)
    both.sum().backward()
    assert int(module.count) == counted > 0


def test_evaluations_with_checkpoints_are_those_of_the_call():
    calls = []

    def func(t, x):
        calls.append(t)
        return torch.sin(3 * t) * x

    found = integrate(CallableField(func, edges=(0.3,)), START.clone().requires_grad_(), [0.0, 1.0], gradient="checkpoint")
    assert found.nfe == len(calls)
