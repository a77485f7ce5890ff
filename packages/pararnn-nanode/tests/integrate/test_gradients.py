"""Every way to the gradient: what it equals, what it keeps, and what it refuses."""

import pytest
import torch
from torch.func import functional_call

from pararnn.errors import ConfigError, DifferentiationError
from pararnn_nanode.errors import InexactGradientWarning
from pararnn_nanode.fields.callable import CallableField
from pararnn_nanode.integrate.fixed import integrate
from pararnn_nanode.integrate.schedule import schedule
from pararnn_nanode.paths.bucket import BucketPath
from pararnn_nanode.paths.constant import ConstantPath

UNIT = (0.0, 1.0)
EXACT = [
    *((method, "checkpoint") for method in ("euler", "midpoint", "heun", "rk4", "rk4_38", "reversible_heun", "alf")),
    ("reversible_heun", "reversible"),
    ("alf", "reversible"),
]
SHARED = [0.2, 0.2, 1.0, 0.5, 0.0]
OWN = [[0.2, 0.5], [0.6, 1.0], [1.0, 0.3]]
DEFERRED = [("rk4", "checkpoint"), ("reversible_heun", "reversible"), ("alf", "reversible"), ("rk4", "adjoint")]


def leaf(values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def loss(field, x, t, gradient, method, steps, u=None):
    states = integrate(field, x, schedule(t, steps=steps, span=UNIT), method=method, gradient=gradient, u=u).x
    weights = torch.linspace(1, 2, states.numel(), dtype=states.dtype).view_as(states)
    return (states.sin() * weights).sum()


def gradients(field, x, t, gradient, method, steps, u=None, **options):
    inputs = [tensor for tensor in (x, u, t, *field.parameters()) if tensor is not None]
    return torch.autograd.grad(loss(field, x, t, gradient, method, steps, u), inputs, **options)


def assert_equal(found, expected, tolerance=1e-12):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("steps", [1, 16, 21], ids="L{}".format)
@pytest.mark.parametrize("times", [None, SHARED, OWN], ids=["end", "times", "own_times"])
@pytest.mark.parametrize("path", [None, ConstantPath((4, 4)), BucketPath((4, 4), buckets=3)], ids=["trig", "constant", "bucket"])
@pytest.mark.parametrize(("method", "gradient"), EXACT)
def test_gradients_by_state_times_and_parameters_are_those_of_backprop(method, gradient, path, times, steps, network, batch):
    field, x = network(4, path), batch.requires_grad_()
    t = None if times is None else leaf(times)
    assert_equal(gradients(field, x, t, gradient, method, steps), gradients(field, x, t, "backprop", method, steps))


@pytest.mark.parametrize("held", [True, False], ids=["one_for_all", "one_a_step"])
@pytest.mark.parametrize(("method", "gradient"), EXACT)
def test_gradients_by_inputs_are_those_of_backprop(method, gradient, held, network, batch):
    field, x = network(4, inputs=2), batch.requires_grad_()
    u = torch.randn(*(() if held else (20,)), 3, 2, dtype=torch.float64, requires_grad=True)
    assert_equal(gradients(field, x, None, gradient, method, 20, u), gradients(field, x, None, "backprop", method, 20, u))


@pytest.mark.parametrize("times", [None, SHARED], ids=["end", "times"])
@pytest.mark.parametrize(("method", "gradient"), EXACT)
def test_second_derivatives_are_those_of_backprop(method, gradient, times, network, batch):
    field, x = network(4), batch.requires_grad_()
    t = None if times is None else leaf(times)

    def second(gradient):
        first = gradients(field, x, t, gradient, method, 6, create_graph=True)
        inputs = [tensor for tensor in (x, t, *field.parameters()) if tensor is not None]
        return torch.autograd.grad(sum(part.square().sum() for part in first), inputs)

    assert_equal(second(gradient), second("backprop"), 1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_reversible_gradients_of_a_thousand_steps_are_those_of_backprop(dtype, network, batch):
    field, x = network(4).to(dtype), batch.to(dtype).requires_grad_()
    found, expected = (gradients(field, x, None, gradient, "reversible_heun", 1000) for gradient in ("reversible", "backprop"))
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).norm() / other.norm()) < (1e-12 if dtype == torch.float64 else 5e-6)


@pytest.mark.parametrize("times", [None, SHARED, OWN], ids=["end", "times", "own_times"])
def test_the_adjoint_gradient_tends_to_the_exact_one_with_the_order_of_the_method(times, network, batch):
    field, x = network(4), batch.requires_grad_()
    t = None if times is None else leaf(times)

    def difference(steps):
        found, expected = (gradients(field, x, t, gradient, "rk4", steps) for gradient in ("adjoint", "backprop"))
        return max(float((one - other).norm() / other.norm()) for one, other in zip(found, expected, strict=True))

    coarse, fine = difference(20), difference(80)
    assert fine < 1e-5
    assert coarse / fine > 100


def test_the_adjoint_of_euler_is_far_from_the_gradient_and_warns(network, batch):
    field, x = network(4), batch.requires_grad_()
    with pytest.warns(InexactGradientWarning, match="not the derivative of what it computes"):
        found = gradients(field, x, None, "adjoint", "euler", 10)
    expected = gradients(field, x, None, "backprop", "euler", 10)
    assert float((found[0] - expected[0]).norm() / expected[0].norm()) > 0.01


def test_the_adjoint_has_no_second_derivative(network, batch):
    with pytest.raises(DifferentiationError, match="second derivative"):
        gradients(network(4), batch.requires_grad_(), None, "adjoint", "rk4", 5, create_graph=True)


@pytest.mark.parametrize(
    ("method", "gradient"), [("rk4", "reversible"), ("reversible_heun", "adjoint"), ("rk4", "backwards"), ("verlet", "backprop")], ids="-".join
)
def test_impossible_pairs_are_refused(method, gradient, network, batch):
    with pytest.raises(ConfigError, match=f"{method}|{gradient}"):
        integrate(network(4), batch, schedule(steps=3, span=UNIT), method=method, gradient=gradient)


def saved_bytes(gradient, method, steps, network, batch):
    seen = {}

    def pack(tensor):
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        states = integrate(network(16), batch, schedule(steps=steps, span=UNIT), method=method, gradient=gradient).x
    assert states.requires_grad
    return sum(seen.values())


@pytest.mark.parametrize(("method", "gradient"), [("reversible_heun", "reversible"), ("alf", "reversible"), ("rk4", "adjoint")])
def test_what_is_saved_does_not_depend_on_the_steps(method, gradient, network):
    x = torch.randn(64, 16, dtype=torch.float64, requires_grad=True)
    assert saved_bytes(gradient, method, 10, network, x) == saved_bytes(gradient, method, 1000, network, x)


@pytest.mark.parametrize("method", ["euler", "rk4", "reversible_heun"])
def test_what_checkpoints_save_grows_with_the_square_root_of_the_steps(method, network):
    x = torch.randn(64, 16, dtype=torch.float64, requires_grad=True)
    few, more, many = (saved_bytes("checkpoint", method, steps, network, x) for steps in (10, 100, 1000))
    assert more / few < 2.5 * 10**0.5
    assert many / few < 2.5 * 10


@pytest.mark.parametrize(("method", "gradient"), DEFERRED)
def test_parameters_put_in_place_for_one_call_get_its_gradient(method, gradient, network, batch):
    field, scale = network(4), leaf(0.7)
    module = torch.nn.ModuleDict({"field": field})
    module.forward = lambda gradient: loss(field, batch, None, gradient, method, 40)

    def by_scale(gradient):
        parameters = {name: parameter.detach() * scale for name, parameter in module.named_parameters()}
        return torch.autograd.grad(functional_call(module, parameters, (gradient,)), scale)

    assert_equal(by_scale(gradient), by_scale("backprop"), 1e-12 if gradient != "adjoint" else 1e-5)


@pytest.mark.parametrize(("method", "gradient"), DEFERRED)
def test_parameters_edited_between_forward_and_backward_are_noticed(method, gradient, network, batch):
    field = network(4)
    value = loss(field, batch, None, gradient, method, 5)
    with torch.no_grad():
        field.path.coefficients.add_(1.0)
    with pytest.raises(RuntimeError, match=r"in place|inplace"):
        value.backward()


@pytest.mark.parametrize(("method", "gradient"), DEFERRED)
def test_a_tensor_that_nobody_named_raises_or_gets_its_gradient(method, gradient, given, batch):
    weight = leaf([[0.1, 0.2, 0.3, 0.4]] * 4)
    field = given(lambda times: (weight * 2).expand(*times.shape, 4, 4), torch.tanh)
    if gradient == "checkpoint":
        assert_equal(*(torch.autograd.grad(loss(field, batch, None, name, method, 9), weight) for name in ("checkpoint", "backprop")))
        return
    with pytest.raises(DifferentiationError, match="parameters="):
        loss(field, batch, None, gradient, method, 9)


@pytest.mark.parametrize(("method", "gradient"), DEFERRED)
def test_a_tensor_that_was_named_gets_its_gradient(method, gradient, given, batch):
    weight = leaf([[0.1, 0.2, 0.3, 0.4]] * 4)
    doubled = weight * 2
    field = given(lambda times: doubled.expand(*times.shape, 4, 4), torch.tanh)

    def by_weight(gradient):
        plan = schedule(steps=40, span=UNIT)
        states = integrate(field, batch, plan, method=method, gradient=gradient, parameters=(doubled,)).x
        return torch.autograd.grad(states.square().sum(), weight, retain_graph=True)

    assert_equal(by_weight(gradient), by_weight("backprop"), 1e-12 if gradient != "adjoint" else 1e-6)


class Potential(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 4).double()

    def forward(self, t, x):
        with torch.enable_grad():
            x = x if x.requires_grad else x.requires_grad_()
            return -torch.autograd.grad((x.sin() * self.layer(x)).sum(), x, create_graph=True)[0]


@pytest.mark.parametrize(("method", "gradient"), DEFERRED)
def test_a_field_that_takes_a_derivative_itself_works(method, gradient, batch):
    field, x = CallableField(Potential()), batch.requires_grad_()
    found, expected = (gradients(field, x, None, name, method, 40) for name in (gradient, "backprop"))
    assert_equal(found, expected, 1e-11 if gradient != "adjoint" else 1e-4)


@pytest.mark.parametrize(("method", "gradient"), [("rk4", "backprop"), *DEFERRED])
def test_a_parameter_that_is_not_used_gets_no_gradient(method, gradient, network, batch):
    field = network(4)
    field.idle = torch.nn.Linear(2, 2)
    loss(field, batch, None, gradient, method, 4).backward()
    assert field.idle.weight.grad is None or not field.idle.weight.grad.any()
    assert field.path.coefficients.grad.any()


@pytest.mark.parametrize(("method", "gradient"), [("rk4", "backprop"), *DEFERRED])
def test_no_steps_at_all_have_the_gradient_of_the_identity(method, gradient, network, batch):
    x = batch.requires_grad_()
    states = integrate(network(4), x, schedule([0.0, 0.0], steps=3, span=UNIT), method=method, gradient=gradient).x
    assert_equal(torch.autograd.grad(states.sum(), x), (torch.full_like(x, 2.0),))


@pytest.mark.parametrize(("method", "gradient"), [("euler", "checkpoint"), *EXACT[-2:]])
def test_complex_states_have_the_gradients_of_backprop(method, gradient, given):
    x = torch.randn(2, 3, dtype=torch.complex128, requires_grad=True)
    weight = torch.randn(3, 3, dtype=torch.complex128, requires_grad=True)
    t = leaf([0.4, 1.0])
    field = given(lambda times: (1j * times[..., None, None]).exp() * weight, torch.tanh)

    def parts(name):
        states = integrate(field, x, schedule(t, steps=8, span=UNIT), method=method, gradient=name, parameters=(weight,)).x
        return torch.autograd.grad(states.abs().square().sum(), (x, weight, t))

    assert_equal(parts(gradient), parts("backprop"))


@pytest.mark.parametrize(("method", "gradient"), DEFERRED)
def test_parameters_of_the_module_may_be_named_once_more(method, gradient, network, batch):
    field, x = network(4), batch.requires_grad_()
    states = integrate(field, x, schedule(steps=5, span=UNIT), method=method, gradient=gradient, parameters=tuple(field.parameters())).x
    plain = integrate(field, x, schedule(steps=5, span=UNIT), method=method, gradient=gradient).x
    assert_equal(*(torch.autograd.grad(found.sum(), [*field.parameters()]) for found in (states, plain)))
