"""What a field reads beside its state: declared tensors, inputs, buffers and tensors that nobody named."""

import pytest
import torch

from pararnn.errors import DifferentiationError
from pararnn_nanode.block import NANODE
from pararnn_nanode.fields.callable import CallableField

DEFERRED = [("rk4", "adjoint"), ("reversible_heun", "reversible"), ("alf", "reversible")]
ALL = [("rk4", "checkpoint"), *DEFERRED]


def leaf(*values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def tolerance(gradient):
    return {"rtol": 1e-4 if gradient == "adjoint" else 1e-12, "atol": 1e-5 if gradient == "adjoint" else 1e-12}


@pytest.mark.parametrize(("method", "gradient"), ALL)
def test_a_hook_on_a_declared_tensor_sees_its_whole_gradient_once(method, gradient):
    weight, seen = leaf(0.7), []
    block = NANODE(CallableField(lambda t, x: torch.sin(weight * x), parameters=(weight,)), steps=20, method=method, gradient=gradient)
    (plain,) = torch.autograd.grad(block(leaf(1.0)).sum(), weight)
    weight.register_hook(lambda grad: seen.append(grad) or grad * 2)
    block(leaf(1.0)).sum().backward()
    assert len(seen) == 1
    torch.testing.assert_close(weight.grad, 2 * plain)


# The adjoint has no second derivative.
DERIVATIVES = [(*pair, twice) for pair in DEFERRED for twice in (False, True) if not (twice and pair[1] == "adjoint")]


@pytest.mark.parametrize("order", [1, -1], ids=["computed_first", "computed_last"])
@pytest.mark.parametrize(("method", "gradient", "twice"), DERIVATIVES)
def test_declared_tensors_may_have_been_computed_from_one_another(method, gradient, order, twice):
    weight = leaf(0.4)
    double = weight.sin() * 2

    def by_weight(gradient):
        field = CallableField(lambda t, x: torch.sin(x) * double * weight, parameters=(double, weight)[::order])
        states = NANODE(field, steps=40, method=method, gradient=gradient)(leaf(0.5))
        (first,) = torch.autograd.grad(states.sum(), weight, create_graph=twice, retain_graph=True)
        return torch.autograd.grad(first, weight, retain_graph=True)[0] if twice else first

    torch.testing.assert_close(by_weight(gradient), by_weight("backprop"), **tolerance(gradient))


def late(weight):
    return lambda t, x: torch.sin(x) * (weight if float(t) > 0.5 else 1.0)


def late_behind_a_derivative(weight):
    def slope(t, x):
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            (found,) = torch.autograd.grad(torch.cos(point).sum(), point, create_graph=True)
        return -found if float(t) < 0.5 else -found * weight

    return slope


@pytest.mark.parametrize("function", [late, late_behind_a_derivative])
@pytest.mark.parametrize(("method", "gradient"), DEFERRED)
def test_a_tensor_that_is_read_late_in_the_walk_is_noticed(method, gradient, function):
    field = CallableField(function(leaf(0.7)), edges=(0.5,))
    with pytest.raises(DifferentiationError, match="parameters="):
        NANODE(field, steps=10, method=method, gradient=gradient)(leaf(0.5))


def test_watching_a_field_that_takes_a_derivative_itself_costs_one_more_evaluation_of_the_walk():
    calls = []

    def slope(t, x):
        calls.append(None)
        point = x.detach().requires_grad_()
        return -torch.autograd.grad(torch.cos(point).sum(), point, create_graph=True)[0]

    solution = NANODE(slope, steps=30, method="alf", gradient="reversible").solve(leaf(0.5))
    assert len(calls) == solution.nfe + 1


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.0, dtype=torch.float64))

    def forward(self, t, x):
        return torch.sin(self.scale * x)


@pytest.mark.parametrize(("method", "gradient"), ALL)
def test_a_buffer_edited_between_forward_and_backward_is_noticed(method, gradient):
    module = Scaled()
    value = NANODE(module, steps=10, method=method, gradient=gradient)(leaf(1.0, 0.5)).sum()
    module.scale.mul_(3)
    with pytest.raises(DifferentiationError, match=r"buffer fn\.scale was edited in place"):
        value.backward()


@pytest.mark.parametrize(("method", "gradient"), ALL)
def test_inputs_edited_between_forward_and_backward_are_noticed(method, gradient):
    u = torch.tensor([0.5, 0.2], dtype=torch.float64)
    value = NANODE(lambda t, x, u: torch.sin(u * x), steps=10, method=method, gradient=gradient)(leaf(1.0, 0.5), u=u).sum()
    u.mul_(3)
    with pytest.raises(RuntimeError, match=r"in place|inplace"):
        value.backward()


class Normalised(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 4, dtype=torch.float64)
        self.norm = torch.nn.BatchNorm1d(4, dtype=torch.float64)

    def forward(self, t, x):
        return torch.tanh(self.norm(self.layer(x)))


@pytest.mark.parametrize(("method", "gradient"), ALL)
def test_running_statistics_are_updated_once_and_by_any_later_pass(method, gradient):
    module, x = Normalised(), torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    block = NANODE(module, steps=10, method=method, gradient=gradient)
    states = block(x)
    block(x.detach())
    counted, mean = module.norm.num_batches_tracked.clone(), module.norm.running_mean.clone()
    (found,) = torch.autograd.grad(states.square().sum(), x)
    assert module.norm.num_batches_tracked == counted
    assert torch.equal(module.norm.running_mean, mean)
    (expected,) = torch.autograd.grad(NANODE(module, steps=10, method=method)(x).square().sum(), x)
    torch.testing.assert_close(found, expected, **tolerance(gradient))
