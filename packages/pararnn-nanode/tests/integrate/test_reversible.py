"""Walks that are undone: where that works, and how it says that it did not."""

import pytest
import torch

from pararnn.errors import ConfigError
from pararnn_nanode.block import NANODE
from pararnn_nanode.errors import NotReversibleError, UnstableMethodWarning
from pararnn_nanode.fields.callable import CallableField
from pararnn_nanode.integrate.alf import ALF
from pararnn_nanode.integrate.fixed import integrate
from pararnn_nanode.integrate.schedule import schedule

METHODS = ["reversible_heun", "alf"]


def decay(rate):
    return CallableField(lambda t, x: -rate * x)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("rate", "end", "steps"), [(1.0, 50.0, 500), (5.0, 50.0, 500), (1.0, 20.0, 200)], ids=str)
def test_a_walk_that_decay_makes_unstable_raises(method, rate, end, steps):
    x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(NotReversibleError, match="unstable") as caught:
        integrate(decay(rate), x, schedule(steps=steps, span=(0.0, end)), method=method, gradient="reversible")
    assert caught.value.data["drift"] > 1


@pytest.mark.parametrize("method", METHODS)
def test_a_field_that_changes_between_forward_and_backward_raises(method):
    calls = []
    field = CallableField(lambda t, x: torch.tanh(x) * (1 + len(calls) * 1e-3))
    x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    states = integrate(field, x, schedule(steps=10, span=(0.0, 1.0)), method=method, gradient="reversible").x
    calls.append(None)
    with pytest.raises(NotReversibleError, match="missed the initial state") as caught:
        states.sum().backward()
    assert caught.value.data["drift"] > caught.value.data["allowed"]


@pytest.mark.parametrize("method", METHODS)
def test_the_solution_tells_the_drift_after_a_backward_pass(method, network, batch):
    solution = integrate(network(4), batch, schedule(steps=50, span=(0.0, 1.0)), method=method, gradient="reversible")
    assert solution.drift is None
    solution.last.sum().backward()
    assert 0 <= solution.drift < 1e-13


def test_one_sample_that_drifts_is_not_hidden_by_the_others():
    rate = torch.tensor([[0.0]] * 63 + [[1.0]], dtype=torch.float64)
    x = torch.ones(64, 1, dtype=torch.float64, requires_grad=True)
    with pytest.raises(NotReversibleError):
        integrate(decay(rate), x, schedule(steps=200, span=(0.0, 20.0)), method="reversible_heun", gradient="reversible").last.sum().backward()


def test_damping_makes_alf_stable_and_irreversible():
    x = torch.ones(1, dtype=torch.float64)
    plan = schedule(steps=500, span=(0.0, 50.0))
    assert float(integrate(decay(1.0), x, plan, method=ALF(damping=0.9)).last.abs()) < 1e-15
    with pytest.raises(ConfigError, match="undamped"):
        integrate(decay(1.0), x, plan, method=ALF(damping=0.9), gradient="reversible")
    with pytest.raises(ConfigError, match=r"0\.5"):
        ALF(damping=0.4)


@pytest.mark.parametrize("method", METHODS)
def test_each_step_costs_one_evaluation_backwards(method):
    calls = []
    field = CallableField(lambda t, x: calls.append(None) or torch.tanh(x))
    x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    solution = integrate(field, x, schedule(steps=40, span=(0.0, 1.0)), method=method, gradient="reversible")
    assert len(calls) == solution.nfe == 41
    solution.last.sum().backward()
    assert len(calls) == 82


def test_automatic_precision_is_the_same_on_the_way_back(network, batch):
    field, x = network(4).float(), batch.float().requires_grad_()

    def gradient(name):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            states = integrate(field, x, schedule(steps=10, span=(0.0, 1.0)), method="reversible_heun", gradient=name).x
        return torch.autograd.grad(states.sum(), x)[0]

    torch.testing.assert_close(gradient("reversible"), gradient("backprop"), rtol=2e-2, atol=2e-2)


class _Twice(torch.nn.Module):
    """One module under two names, and one more whose weight is tied to it."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.second = self.first
        self.third = torch.nn.Linear(3, 3)
        self.third.weight = self.first.weight

    def forward(self, t, x):
        return torch.tanh(self.first(self.third(self.second(x))))


@pytest.mark.parametrize(("method", "gradient"), [("alf", "reversible"), ("rk4", "checkpoint")])
def test_a_module_with_two_names_keeps_its_parameters_and_their_gradient(method, gradient):
    torch.manual_seed(0)
    module, x = _Twice().double(), torch.randn(2, 3, dtype=torch.float64)
    weight = module.first.weight
    found = []
    for way in ("backprop", gradient):
        weight.grad = None
        NANODE(CallableField(module), method=method, gradient=way)(x).sum().backward()
        assert module.first.weight is module.second.weight is module.third.weight is weight
        found.append(weight.grad)
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)


def turning(t, x):
    """Away from 0.3 in the second half of the span, and towards it before, so that walking back loses digits."""
    return torch.where(t < 0.5, -24.0, 24.0) * torch.tanh(x - 0.3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("other", [0.4, 1e4, 1e8], ids="{:g}".format)
def test_a_large_sample_does_not_hide_one_that_is_not_recovered(method, other):
    x = torch.tensor([[other], [0.5]], requires_grad=True)
    with pytest.raises(NotReversibleError):
        NANODE(turning, steps=500, method=method, gradient="reversible")(x)[1].sum().backward()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("other", [1e4, 1e8], ids="{:g}".format)
def test_a_large_channel_does_not_hide_one_that_is_not_recovered(method, other):
    alone = torch.tensor([0.0, 1.0])
    x = torch.tensor([other, 0.5], requires_grad=True)
    with pytest.raises(NotReversibleError):
        NANODE(lambda t, x: turning(t, x) * alone, steps=500, method=method, gradient="reversible")(x)[1].backward()


@pytest.mark.parametrize("method", METHODS)
def test_a_small_walk_from_zero_is_measured_by_its_own_size(method):
    x = torch.zeros(1, requires_grad=True)
    with pytest.raises(NotReversibleError):
        NANODE(lambda t, x: 1e-3 * turning(t, 1e3 * x), steps=500, method=method, gradient="reversible")(x).sum().backward()


def turned(basis):
    """A network of the first four of twelve directions; what the others hold cancels but for rounding."""
    return lambda t, x: torch.cat((torch.tanh((x @ basis)[..., :4]).roll(1, -1), 0 * x[..., 4:]), dim=-1) @ basis.mT


def cancelling(basis):
    """Channels of which the last eight are driven by nothing but rounding of the first four."""
    return lambda t, x: torch.cat((torch.tanh(x[..., :4]), (x[..., :4] @ basis[:4] @ basis.mT)[..., 4:]), dim=-1)


@pytest.mark.parametrize("function", [turned, cancelling])
@pytest.mark.parametrize("method", METHODS)
def test_channels_that_hold_nothing_but_rounding_raise_no_alarm(method, function):
    random = torch.Generator().manual_seed(1)
    basis = torch.linalg.qr(torch.randn(12, 12, generator=random))[0]
    x = torch.cat((torch.randn(8, 4, generator=random), torch.zeros(8, 8)), dim=1).requires_grad_()
    ways = [NANODE(function(basis), steps=200, method=method, gradient=gradient)(x).square().sum() for gradient in ("reversible", "backprop")]
    found, expected = (torch.autograd.grad(value, x)[0] for value in ways)
    assert float((found - expected).norm() / expected.norm()) < 1e-5


@pytest.mark.parametrize("method", METHODS)
def test_a_path_that_returns_to_its_start_raises_no_alarm(method):
    x = torch.zeros(2, 3, requires_grad=True)
    block = NANODE(lambda t, x: torch.cos(2 * torch.pi * t) * torch.ones_like(x) + 0 * x, steps=12, method=method, gradient="reversible")
    solution = block.solve(x)
    solution.last.sum().backward()
    assert solution.drift < 1e-5


@pytest.mark.parametrize("gradient", ["backprop", "checkpoint"])
@pytest.mark.parametrize("method", METHODS)
def test_other_gradients_warn_of_a_method_that_has_become_unstable(method, gradient):
    x = torch.ones(2, 1, requires_grad=True)
    with pytest.warns(UnstableMethodWarning, match="unstable for this equation"):
        NANODE(lambda t, x: -x, 200, (0.0, 20.0), method=method, gradient=gradient)(x)


@pytest.mark.parametrize("gradient", ["backprop", "checkpoint"])
@pytest.mark.parametrize("method", METHODS)
def test_a_stable_walk_warns_of_nothing(method, gradient, network, batch):
    assert torch.isfinite(NANODE(network(4), 200, method=method, gradient=gradient)(batch.requires_grad_())).all()


def test_damping_costs_alf_an_order(given, trig_equation):
    x = torch.tensor([0.6, -0.4], dtype=torch.float64)
    for method in (ALF(), ALF(damping=0.9)):
        ends = [NANODE(trig_equation(3.0), steps, method=method)(x) for steps in (100, 200, 400)]
        ratio = float((ends[0] - ends[1]).norm() / (ends[1] - ends[2]).norm())
        assert round(torch.log2(torch.tensor(ratio)).item()) == method.order
