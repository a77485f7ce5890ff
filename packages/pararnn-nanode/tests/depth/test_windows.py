"""Windows solved one after the other keep little, and lose no gradient."""

import math

import pytest
import torch

from pararnn.errors import DifferentiationError
from pararnn_nanode.depth.solve import integrate
from pararnn_nanode.fields.callable import CallableField
from pararnn_nanode.fields.dense import DenseField
from pararnn_nanode.integrate import fixed
from pararnn_nanode.integrate.schedule import schedule
from pararnn_nanode.paths.constant import ConstantPath
from pararnn_nanode.paths.trigonometric import TrigPath


def saved_bytes(run):
    """Bytes that autograd keeps between forward and backward, each tensor counted once."""
    seen = {}

    def pack(tensor):
        seen[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(seen.values())


def test_what_is_kept_grows_with_the_square_root_of_the_steps(dense):
    field, x = dense(), torch.randn(4, 5, requires_grad=True)
    kept = [
        saved_bytes(
            lambda steps=steps: integrate(field, x, schedule(1.0, steps=steps, span=(0.0, 1.0)), parallel="windowed", window=round(math.sqrt(steps)))
        )
        for steps in (64, 256, 1024)
    ]
    parameters = saved_bytes(lambda: field.path.coefficients * field.path.coefficients)
    few, some, many = (size - parameters for size in kept)
    assert some < 2.5 * few
    assert many < 2.5 * some


@pytest.mark.parametrize("window", [1, 7, 64, 1000])
def test_any_window_gives_the_walk(dense, compare, path, window):
    states, gradients, _ = compare(dense(), torch.randn(2, 5), path(64), parallel="windowed", window=window)
    assert states < 1e-10
    assert gradients < 1e-9


def test_gradients_are_those_of_the_weights_that_stood_in(dense):
    field, x, plan = dense(), torch.randn(2, 5), schedule(1.0, steps=70, span=(0.0, 1.0))
    block = _Block(field)
    found = []
    for solve in (fixed.integrate, lambda *args: integrate(*args, parallel="windowed", window=16)):
        weights = {name: (2 * value).detach().requires_grad_() for name, value in block.named_parameters()}
        result = torch.func.functional_call(block, weights, (solve, x, plan))
        found.append(torch.autograd.grad(result.square().sum(), list(weights.values()))[0])
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-9)


class _Block(torch.nn.Module):
    def __init__(self, field):
        super().__init__()
        self.field = field

    def forward(self, solve, x, plan):
        return solve(self.field, x, plan).x


@pytest.mark.parametrize("rows", [1, 64])
def test_the_parameters_are_the_same_tensors_after_a_backward_pass(dense, path, rows):
    field = dense(bias=TrigPath(5, 1, gain=1.0))
    before = dict(field.named_parameters())
    integrate(field, torch.randn(rows, 5), path(70), parallel="windowed").x.square().sum().backward()
    after = dict(field.named_parameters())
    assert all(after[name] is tensor for name, tensor in before.items())
    assert all(tensor.is_leaf and tensor.grad is not None for tensor in after.values())


@pytest.mark.parametrize("parallel", ["newton", "windowed"])
def test_weights_edited_before_the_backward_pass_are_noticed(dense, path, parallel):
    field = dense(activation=None)
    loss = integrate(field, torch.randn(2, 5, requires_grad=True), path(70), parallel=parallel).x.square().sum()
    with torch.no_grad():
        field.path.coefficients.add_(1.0)
    # What the whole solve keeps are the weights of all steps, which an edit of the parameters does not touch.
    if parallel == "windowed":
        with pytest.raises(RuntimeError, match=r"in place|inplace"):
            loss.backward()
    else:
        loss.backward()


def test_a_stranger_is_refused_by_windows_and_known_when_named(path):
    weight = torch.randn(5, 5, requires_grad=True)
    field = CallableField(lambda t, x: torch.tanh(x @ weight))
    x = torch.randn(2, 5)
    with pytest.raises(DifferentiationError, match="parameters="):
        integrate(field, x, path(70), parallel="windowed")
    truth = torch.autograd.grad(fixed.integrate(field, x, path(70)).x.sum(), weight)[0]
    named = integrate(field, x, path(70), parallel="windowed", parameters=(weight,))
    whole = integrate(field, x, path(70), parallel="picard")
    for solution in (named, whole):
        torch.testing.assert_close(torch.autograd.grad(solution.x.sum(), weight)[0], truth, rtol=1e-9, atol=1e-9)


def test_an_edited_buffer_is_noticed(path):
    field = CallableField(_Buffered())
    loss = integrate(field, torch.randn(2, 5, requires_grad=True), path(70), parallel="windowed").x.sum()
    field.fn.scale.mul_(3)
    with pytest.raises(DifferentiationError, match="scale was edited in place"):
        loss.backward()


def test_edited_inputs_are_noticed(path):
    field = CallableField(lambda t, x, u: torch.sin(x) + u)
    u = torch.ones(2, 5)
    loss = integrate(field, torch.randn(2, 5, requires_grad=True), path(70), parallel="windowed", u=u).x.sum()
    u.mul_(3)
    with pytest.raises(DifferentiationError, match="u was edited in place"):
        loss.backward()


class _Buffered(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.0, 5))
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, t, x):
        return torch.sin(self.weight * self.scale * x)


def test_named_tensors_that_depend_on_one_another_get_their_own_share_once(path):
    weight = torch.linspace(0.5, 1.0, 5).requires_grad_()
    double = 2 * weight
    field, x = CallableField(lambda t, x: double * torch.sin(weight * x)), torch.randn(2, 5)
    truth = torch.autograd.grad(fixed.integrate(field, x, path(70)).x.sum(), weight, retain_graph=True)[0]
    found = integrate(field, x, path(70), parallel="windowed", window=16, parameters=(double, weight)).x.sum()
    torch.testing.assert_close(torch.autograd.grad(found, weight)[0], truth, rtol=1e-9, atol=1e-9)


def test_a_hook_on_a_parameter_hears_of_its_whole_gradient_once(path):
    weight = torch.linspace(0.5, 1.0, 5).requires_grad_()
    heard = []
    weight.register_hook(heard.append)
    field = CallableField(lambda t, x: torch.sin(weight * x))
    integrate(field, torch.randn(2, 5), path(70), parallel="windowed", window=16, parameters=(weight,)).x.sum().backward()
    assert len(heard) == 1
    torch.testing.assert_close(heard[0], weight.grad)


def test_a_field_that_takes_a_derivative_inside_itself_is_accepted(path):
    x = torch.randn(3, 2)
    states = [integrate(CallableField(_Hamilton()), x, path(70), parallel=parallel).x for parallel in ("windowed", "picard")]
    torch.testing.assert_close(states[0], states[1], rtol=1e-9, atol=1e-9)


class _Hamilton(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(0.8))

    def forward(self, t, x):
        with torch.enable_grad():
            state = x if x.requires_grad else x.detach().requires_grad_()
            energy = (self.weight * (1 - state[..., 0].cos()) + state[..., 1] ** 2 / 2).sum()
            (slope,) = torch.autograd.grad(energy, state, create_graph=True)
        return torch.stack((slope[..., 1], -slope[..., 0]), -1)


def test_a_stranger_that_is_read_only_later_is_refused(path):
    weight = torch.tensor(0.7, requires_grad=True)
    field = CallableField(lambda t, x: torch.sin(x) * weight if float(t.max()) > 0.5 else torch.sin(x))
    with pytest.raises(DifferentiationError, match="parameters="):
        integrate(field, torch.randn(2, 5), path(70), parallel="windowed", window=16)


def test_errors_of_early_windows_are_not_magnified_by_later_ones(path):
    field = CallableField(lambda t, x: 40 * x * (1 - x))
    x = torch.tensor([1e-13])
    solution = integrate(field, x, path(2000), parallel="windowed")
    torch.testing.assert_close(solution.x, fixed.integrate(field, x, path(2000)).x, rtol=1e-9, atol=1e-9)


def test_a_backward_pass_under_autocast_works_in_the_precision_of_the_walk(path):
    torch.manual_seed(0)
    field = DenseField(3, ConstantPath((3, 3), dtype=torch.float32))
    x = torch.randn(2, 3, dtype=torch.float32)
    gradients = []
    for enabled in (False, True):
        states = integrate(field, x, path(70), parallel="windowed", window=16).x
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            gradients.append(torch.autograd.grad(states.sum(), field.path.coefficients)[0])
    assert torch.equal(*gradients)
