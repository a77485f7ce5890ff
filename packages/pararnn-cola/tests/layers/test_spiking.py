from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.testing import assert_close

from pararnn.errors import ConfigError
from pararnn_cola import SpikingLayer
from pararnn_cola.layers.activations import activation_of
from pararnn_cola.layers.surrogates import BUMPS, surrogate_of

BUMP = pytest.mark.parametrize("bump", list(BUMPS))


def spiking(**options):
    return SpikingLayer(3, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64, **options)


def test_membranes_and_spikes_follow_integrate_and_fire_with_reset_by_subtraction():
    layer = spiking(leak=0.8, threshold=0.6)
    state = layer.zero_state(4)
    spikes, membrane = torch.zeros(4, 5, dtype=torch.float64), torch.zeros(4, 5, dtype=torch.float64)
    fired = 0.0
    for u in torch.randn(20, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)):
        state, _ = layer(u, state)
        current = spikes @ layer.weight_hh.mT + u @ layer.weight_ih.mT + layer.bias
        membrane = (0.8 * membrane + current - 0.6 * spikes).detach()
        spikes = (membrane > 0.6).double()
        assert_close(state, (spikes, membrane), rtol=1e-12, atol=1e-12)
        fired += spikes.mean().item() / 20
    assert 0.1 < fired < 0.9


def test_a_constant_current_makes_a_unit_fire_at_the_rate_that_charge_balance_asks_for():
    layer = SpikingLayer(1, 1, leak=1.0, threshold=1.0, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh.zero_()
        layer.weight_ih.fill_(0.3)
        state, count = layer.zero_state(1), 0.0
        for _ in range(1000):
            state, _ = layer(torch.ones(1, 1, dtype=torch.float64), state)
            count += state[0].item()
    # A perfect integrator gains 0.3 a step and pays 1 a spike.
    assert abs(count - 300) <= 1


@BUMP
def test_autograd_gets_the_bump_of_the_distance_for_a_derivative(bump):
    activation = surrogate_of(bump, steepness=3.0, height=0.7)
    distance = torch.linspace(-1, 1, 41, dtype=torch.float64, requires_grad=True)
    spikes = activation.function(distance)
    assert_close(spikes.detach(), (distance.detach() > 0).double(), rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(spikes.sum(), distance)
    assert_close(gradient, activation.slope(distance.detach(), spikes.detach()), rtol=0, atol=0)


@BUMP
def test_a_bump_is_its_height_at_the_threshold_even_and_falling(bump):
    slope = surrogate_of(bump, steepness=2.0, height=0.3).slope
    distance = torch.linspace(0, 3, 50, dtype=torch.float64)
    values = slope(distance, distance)
    assert values[0] == 0.3
    assert bool((values.diff() <= 0).all())
    assert_close(slope(-distance, distance), values, rtol=0, atol=0)


@pytest.mark.parametrize(("bump", "expected"), [("fast_sigmoid", 1 / 4), ("arctan", 1 / (1 + (torch.pi / 2) ** 2)), ("triangle", 0.0)])
def test_bumps_have_the_values_of_their_formulas_one_unit_away(bump, expected):
    assert surrogate_of(bump).slope(torch.ones(1), torch.ones(1)).item() == pytest.approx(expected)


@BUMP
def test_transforms_of_torch_see_the_same_derivative(bump):
    activation = surrogate_of(bump)
    distance = torch.randn(4, 3, dtype=torch.float64)
    expected = activation.slope(distance, distance)
    assert_close(torch.func.vmap(torch.func.grad(lambda x: activation.function(x).sum()))(distance), expected, rtol=1e-15, atol=0)
    _, tangent = torch.func.jvp(activation.function, (distance,), (torch.ones_like(distance),))
    assert_close(tangent, expected, rtol=1e-15, atol=0)
    jacobian = torch.func.vmap(torch.func.jacrev(activation.function))(distance)
    assert_close(jacobian, torch.diag_embed(expected), rtol=1e-15, atol=0)


def test_no_gradient_goes_through_the_reset():
    layer = spiking(leak=0.5)
    with torch.no_grad():
        layer.weight_hh.zero_()
    state = tuple(part.requires_grad_() for part in layer.zero_state(2))
    _, membrane = layer(torch.randn(2, 3, dtype=torch.float64), state)
    through_spikes, through_membrane = torch.autograd.grad(membrane.sum(), state)
    assert_close(through_spikes, torch.zeros_like(through_spikes), rtol=0, atol=0)
    assert_close(through_membrane, torch.full_like(through_membrane, 0.5), rtol=0, atol=0)


def test_a_surrogate_of_ones_own_is_taken_as_it_is():
    own = activation_of("sigmoid")
    layer = spiking(surrogate=own, threshold=0.25)
    x = torch.randn(2, 3, dtype=torch.float64)
    (h, v), _ = layer(x, layer.zero_state(2))
    assert_close(h, torch.sigmoid(v - 0.25))


def test_equal_layers_have_equal_settings_and_can_be_copied_and_pickled():
    assert spiking().activation == spiking().activation
    assert spiking(steepness=2.0).activation != spiking().activation
    for twin in (copy.deepcopy(spiking()), pickle.loads(pickle.dumps(spiking()))):
        assert twin.activation == spiking().activation


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"threshold": 0.0}, r"threshold=0\.0"),
        ({"surrogate": "boxcar"}, "surrogate='boxcar' is none of fast_sigmoid, arctan, triangle"),
        ({"steepness": 0.0}, r"steepness=0\.0"),
        ({"height": -1.0}, r"height=-1\.0"),
        ({"leak": 1.1}, r"leak=1\.1"),
    ],
    ids=["threshold", "surrogate", "steepness", "height", "leak"],
)
def test_settings_that_mean_nothing_are_refused(options, match):
    with pytest.raises(ConfigError, match=match):
        spiking(**options)
