"""Exponents that are known: of linear networks exactly, of driven ones by the definition."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pararnn.errors import ConfigError, DTypeError, InputError, ShapeError
from pararnn_cola import (
    CoverageError,
    CriticalityWarning,
    LeakyLayer,
    Network,
    RNNLayer,
    SpikingLayer,
    lyapunov_exponent,
    lyapunov_spectrum,
)

METHODS = ["product", "qr"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("gain", [0.5, 0.9, 1.0, 1.1, 2.0], ids="g{}".format)
def test_the_exponent_of_a_scaled_rotation_is_the_log_of_the_scale(network, drive, gain, method):
    rotation = network("orthogonal", 32, activation="linear", gain=gain)
    for length in (1, 7, 200):
        report = lyapunov_exponent(rotation, drive(length, batch=2), method=method, burn_in=0)
        assert report.exponent == pytest.approx(math.log(gain), abs=2e-15)


def test_the_product_is_biased_upwards_by_about_one_over_the_length(network, drive):
    linear = network("gauss", activation="linear")
    limit = math.log(float(torch.linalg.eigvals(linear.recurrent[0].weight_hh.detach()).abs().max()))
    lengths = [20, 50, 100, 200, 1000]
    biases = [lyapunov_exponent(linear, drive(length, batch=1), burn_in=0).exponent - limit for length in lengths]
    assert all(bias > 0 for bias in biases)
    assert biases == sorted(biases, reverse=True)
    scaled = [bias * length for bias, length in zip(biases, lengths, strict=True)]
    assert max(scaled) < 2 * min(scaled)


@settings(max_examples=25, deadline=None)
@given(scale=st.floats(0.01, 100.0), seed=st.integers(0, 1000))
def test_scaling_a_linear_network_adds_the_log_of_the_scale(scale, seed):
    one = Network.rnn(2, 8, 1, activation="linear", seed=seed, dtype=torch.float64)
    inputs = torch.randn(2, 30, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    before = lyapunov_exponent(one, inputs, burn_in=5).exponent
    with torch.no_grad():
        one.recurrent[0].weight_hh.mul_(scale)
    assert lyapunov_exponent(one, inputs, burn_in=5).exponent == pytest.approx(before + math.log(scale), abs=1e-12)


@pytest.mark.parametrize("activation", ["tanh", "relu", "sigmoid", "softplus"])
def test_the_exponent_of_a_driven_network_is_that_of_the_plain_product(network, drive, by_definition, activation):
    made = network("gauss", 9, activation=activation, gain=1.3)
    inputs, layer = drive(12, batch=3), made.recurrent[0]
    expected = by_definition(lambda state, u: layer(u, (state,))[0][0], lambda batch: layer.zero_state(batch)[0], inputs, burn_in=3)
    report = lyapunov_exponent(made, inputs, burn_in=3)
    assert report.trajectories == pytest.approx(expected, abs=1e-12)
    assert report.exponent == pytest.approx(sum(expected) / 3, abs=1e-12)
    assert (report.steps, report.burn_in, report.method, report.inputs) == (9, 3, "product", "given")


def test_both_methods_agree_as_far_as_the_length_allows(network, drive):
    made, inputs = network(gain=1.5), drive(650)
    product, vectors = (lyapunov_exponent(made, inputs, method=method) for method in METHODS)
    assert product.exponent == pytest.approx(vectors.exponent, abs=0.01)
    assert "too high" in product.bias
    assert "burn-in" in vectors.bias


def test_the_standard_error_is_that_of_the_mean_over_trajectories(network, drive):
    report = lyapunov_exponent(network(state_size=16), drive(60, batch=5), burn_in=10)
    values = torch.tensor(report.trajectories)
    assert report.standard_error == pytest.approx(float(values.std() / math.sqrt(5)), rel=1e-6)
    assert lyapunov_exponent(network(state_size=16), drive(60, batch=1), burn_in=10).standard_error is None


def test_a_trajectory_does_not_depend_on_those_beside_it(network, drive):
    made, inputs = network(state_size=16), drive(40)
    together = lyapunov_exponent(made, inputs, burn_in=5).trajectories
    alone = [lyapunov_exponent(made, inputs[index : index + 1], burn_in=5).exponent for index in range(4)]
    assert together == pytest.approx(alone, abs=1e-13)


def test_the_spectrum_of_a_symmetric_linear_network_is_that_of_its_eigenvalues(network, drive):
    made = network("orthogonal", 6, activation="linear")
    weight = made.recurrent[0].weight_hh
    eigenvalues = torch.tensor([2.0, 1.5, -1.0, 0.6, 0.3, 0.1], dtype=torch.float64)
    with torch.no_grad():
        weight.copy_(weight @ torch.diag(eigenvalues) @ weight.mT)
    spectrum = lyapunov_spectrum(made, drive(350), burn_in=250, k=4)
    assert spectrum.exponents == pytest.approx(eigenvalues.abs().log()[:4].tolist(), abs=1e-9)
    whole = lyapunov_spectrum(made, drive(350), burn_in=250)
    assert whole.dimension == pytest.approx(4 + float(eigenvalues[:4].abs().log().sum() / -eigenvalues[4].abs().log()), rel=1e-6)


def test_all_exponents_add_up_to_the_mean_log_of_the_determinant(network, drive):
    made, inputs = network(state_size=7), drive(30)
    layer, logs = made.recurrent[0], []
    state = layer.zero_state(4)
    for u in inputs.unbind(1):
        state, x = layer(u, state)
        logs.append(torch.linalg.slogdet(layer.slope(x, state).unsqueeze(-1) * layer.weight_hh).logabsdet.detach())
    spectrum = lyapunov_spectrum(made, inputs, burn_in=0)
    assert sum(spectrum.exponents) == pytest.approx(float(torch.stack(logs).mean()), abs=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kind", [LeakyLayer, SpikingLayer], ids=lambda kind: kind.__name__)
def test_numbers_of_a_state_that_follow_from_others_have_an_exponent_of_minus_infinity(drive, kind, dtype):
    # The state is (h, x), of which h is a function: of 16 directions 8 die at once.
    layer = kind(3, 8, generator=torch.Generator().manual_seed(1), dtype=dtype)
    spectrum = lyapunov_spectrum(layer, drive(60), burn_in=10)
    assert [math.isfinite(exponent) for exponent in spectrum.exponents] == [True] * 8 + [False] * 8
    assert sum(spectrum.exponents) == -math.inf
    assert spectrum.standard_errors[8:] == (0.0,) * 8


def test_small_exponents_that_are_no_rounding_stay_finite(drive):
    layer = RNNLayer(3, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    inputs, logs = drive(40, scale=3.0, batch=2), []
    state, least = layer.zero_state(2), 1.0
    for u in inputs.unbind(1):
        state, x = layer(u, state)
        slope = layer.slope(x, state).detach()
        least = min(least, float(slope.min()))
        logs.append(torch.linalg.slogdet(slope.unsqueeze(-1) * layer.weight_hh.detach()).logabsdet)
    assert least < 1e-5
    assert sum(lyapunov_spectrum(layer, inputs, burn_in=0).exponents) == pytest.approx(float(torch.stack(logs).mean()), abs=1e-7)


@pytest.mark.parametrize("method", METHODS)
def test_a_network_of_dead_units_has_an_exponent_of_minus_infinity(network, drive, method):
    dead = network(state_size=8, activation="relu")
    with torch.no_grad():
        dead.recurrent[0].bias.fill_(-1e3)
    report = lyapunov_exponent(dead, drive(30), method=method)
    assert report.exponent == -math.inf
    assert report.standard_error == 0.0
    assert lyapunov_spectrum(dead, drive(30), k=2).exponents == (-math.inf, -math.inf)


def test_one_dead_trajectory_makes_the_mean_infinite_and_its_error_too(network, drive):
    made, inputs = network("identity-like", 8, activation="relu"), drive(30)
    with torch.no_grad():
        made.recurrent[0].weight_ih.fill_(1.0)
        made.recurrent[0].weight_hh.clamp_(min=0.0)
    inputs = inputs.abs()
    inputs[0] = -1e3
    report = lyapunov_exponent(made, inputs)
    assert report.exponent == -math.inf
    assert report.standard_error == math.inf
    assert math.isfinite(report.trajectories[1])


def test_a_linear_network_may_overflow(network, drive):
    blown = network("orthogonal", 8, activation="linear", gain=1e3)
    assert lyapunov_exponent(blown, drive(300, batch=1)).exponent == pytest.approx(math.log(1e3), abs=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_states_that_leave_the_numbers_are_named(network, drive, method):
    blown = network("orthogonal", 8, activation="softplus", gain=1e3)
    with pytest.raises(InputError, match="became infinite or NaN"):
        lyapunov_exponent(blown, drive(300), method=method)
    with pytest.raises(InputError, match="4 of 4 trajectories"):
        lyapunov_spectrum(blown, drive(300), k=2)


def test_made_up_inputs_are_told_and_the_same_every_time(network):
    with pytest.warns(CriticalityWarning, match="standard normal") as told:
        first = lyapunov_exponent(network(state_size=8))
    assert len(told) == 1
    with pytest.warns(CriticalityWarning):
        second = lyapunov_exponent(network(state_size=8))
    assert first == second
    assert (first.steps, first.burn_in, len(first.trajectories)) == (200, 50, 4)
    assert "made up" in first.inputs
    assert first.notes == ()


def test_the_burn_in_is_fifty_steps_or_a_fifth_of_short_inputs(network, drive):
    made = network(state_size=8)
    assert lyapunov_exponent(made, drive(400)).burn_in == 50
    assert lyapunov_exponent(made, drive(100)).burn_in == 20


def test_inputs_that_are_too_short_are_told(network, drive):
    with pytest.warns(CriticalityWarning, match="only 12 steps"):
        report = lyapunov_exponent(network(state_size=8), drive(15, batch=2))
    assert len(report.notes) == 2
    assert "12" in str(report)
    assert report.to_dict()["notes"] == list(report.notes)


def test_measuring_leaves_the_network_and_the_random_numbers_alone(network, drive):
    made = network(state_size=8)
    before, state = {name: value.clone() for name, value in made.state_dict().items()}, torch.get_rng_state()
    lyapunov_exponent(made, drive(30), method="qr")
    assert all(torch.equal(before[name], value) for name, value in made.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in made.parameters())


def test_float32_networks_are_measured_in_float64(network, drive):
    made, inputs = network(state_size=16), drive(60)
    wide = lyapunov_exponent(made, inputs).exponent
    assert lyapunov_exponent(made.float(), inputs).exponent == pytest.approx(wide, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"burn_in": 30}, ShapeError, "burn-in of 30"),
        ({"burn_in": -1}, ShapeError, "burn-in of -1"),
        ({"burn_in": 1.5}, ConfigError, "burn_in=1.5; it is a whole number"),
        ({"burn_in": "x"}, ConfigError, "burn_in='x'; it is a whole number"),
        ({"method": "qr", "vectors": 2.5}, ConfigError, "vectors=2.5"),
        ({"method": "svd"}, ConfigError, "svd"),
        ({"layer": 1}, ConfigError, "layer=1"),
        ({"method": "qr", "vectors": 0}, ConfigError, "vectors=0"),
    ],
)
def test_options_that_cannot_work_are_refused(network, drive, options, error, message):
    with pytest.raises(error, match=message):
        lyapunov_exponent(network(state_size=4), drive(30), **options)


def test_inputs_that_do_not_fit_are_refused(network, drive):
    made = network(state_size=4)
    with pytest.raises(ShapeError, match="takes inputs of shape"):
        lyapunov_exponent(made, drive(30, input_size=2))
    with pytest.raises(ShapeError, match="at least one trajectory"):
        lyapunov_exponent(made, drive(30)[0])
    with pytest.raises(InputError, match="finite"):
        lyapunov_exponent(made, drive(30) * math.nan)
    with pytest.raises(DTypeError, match="one_hot"):
        lyapunov_exponent(made, drive(30).long())
    with pytest.raises(DTypeError, match="got list; torch"):
        lyapunov_exponent(made, drive(30).tolist())
    with pytest.raises(ConfigError, match="k=5"):
        lyapunov_spectrum(made, drive(30), k=5)
    with pytest.raises(ConfigError, match=r"k=1\.5"):
        lyapunov_spectrum(made, drive(30), k=1.5)


def test_what_has_no_state_is_refused():
    with pytest.raises(CoverageError, match="StepSystem"):
        lyapunov_exponent(torch.nn.Linear(3, 3), torch.zeros(1, 30, 3))
