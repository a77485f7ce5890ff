"""The exponent over the gain, and its pictures."""

import math

import pytest
import torch

from pararnn.errors import ConfigError
from pararnn_cola import gain_curve, lyapunov_exponent, lyapunov_spectrum, near_critical, operator_norm, plot_gain_curve, plot_spectrum


@pytest.fixture
def pyplot():
    """matplotlib without a screen."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    yield pyplot
    pyplot.close("all")


def test_each_point_is_the_exponent_at_that_gain(network, drive):
    made, inputs = network(state_size=16), drive(60)
    before = made.recurrent[0].weight_hh.detach().clone()
    curve = gain_curve(made, inputs, [0.5, 1.0, 3.0])
    assert torch.equal(made.recurrent[0].weight_hh, before)
    for gain, exponent, error in zip(curve.gains, curve.exponents, curve.standard_errors, strict=True):
        with torch.no_grad():
            made.recurrent[0].weight_hh.copy_(gain * before / operator_norm(before))
        report = lyapunov_exponent(made, inputs)
        assert exponent == pytest.approx(report.exponent, abs=1e-12)
        assert error == pytest.approx(report.standard_error, rel=1e-6)


def test_a_linear_network_crosses_zero_where_near_critical_puts_it(network, drive):
    made, inputs = network(state_size=16, activation="linear"), drive(60)
    (crossing,) = gain_curve(made, inputs, [0.7, 4.0]).crossings()
    assert near_critical(made, inputs).gain == pytest.approx(crossing, rel=1e-12)


def test_the_curve_of_an_identity_like_network_rises_and_falls_without_reaching_zero(network, drive):
    curve = gain_curve(network("identity-like"), drive(100), [0.5, 1.0, 2.0, 3.0, 5.0], burn_in=0)
    assert curve.exponents[0] < curve.exponents[1] < curve.exponents[2] < 0
    assert curve.exponents[2] > curve.exponents[3] > curve.exponents[4]
    assert curve.crossings() == ()


def test_gains_at_which_states_leave_the_numbers_have_no_exponent(network, drive):
    curve = gain_curve(network(state_size=8, activation="softplus"), drive(400), [1.0, 500.0])
    assert math.isnan(curve.exponents[1])
    assert math.isfinite(curve.exponents[0])


def test_one_layer_of_a_stack_is_varied(network, drive):
    made, inputs = network(state_size=8, num_layers=2), drive(60)
    before = {name: value.clone() for name, value in made.state_dict().items()}
    curve = gain_curve(made, inputs, [operator_norm(made.recurrent[1])], layer=1)
    assert curve.exponents[0] == pytest.approx(lyapunov_exponent(made, inputs, layer=1).exponent, abs=1e-12)
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())


def test_gains_may_be_a_tensor(network, drive):
    made, inputs = network(state_size=4), drive(60)
    assert gain_curve(made, inputs, torch.tensor([0.5, 2.0])) == gain_curve(made, inputs, [0.5, 2.0])


def test_a_weight_is_named_for_a_single_module_only(network, drive):
    made = network(state_size=4)
    with pytest.raises(ConfigError, match="layer="):
        gain_curve(made, drive(60), weight=made.recurrent[0].weight_hh)


@pytest.mark.parametrize("gains", [(), (0.0, 1.0), (math.inf,), 1.0, ("a",)], ids=repr)
def test_gains_that_cannot_be_are_refused(network, drive, gains):
    with pytest.raises(ConfigError, match="gains"):
        gain_curve(network(state_size=4), drive(60), gains)


def test_the_curve_is_drawn_over_the_logarithm_of_the_gain(network, drive, pyplot):
    curve = gain_curve(network(state_size=8), drive(60), [2.0, 0.5, 1.0])
    axes = plot_gain_curve(curve)
    assert axes.get_xscale() == "log"
    assert list(axes.lines[0].get_xdata()) == [0.5, 1.0, 2.0]
    assert axes.lines[0].get_ydata()[2] == pytest.approx(curve.exponents[0])


def test_the_spectrum_is_drawn_in_its_order(network, drive, pyplot):
    spectrum = lyapunov_spectrum(network(state_size=8), drive(60), k=5)
    _, given = pyplot.subplots()
    axes = plot_spectrum(spectrum, axes=given)
    assert axes is given
    assert list(axes.lines[0].get_xdata()) == [1, 2, 3, 4, 5]
    assert axes.lines[0].get_ydata() == pytest.approx(list(spectrum.exponents))
    (bars,) = axes.containers[0].lines[2]
    lengths = [float(high - low) / 2 for (_, low), (_, high) in bars.get_segments()]
    assert lengths == pytest.approx(list(spectrum.standard_errors))


def test_exponents_of_a_single_trajectory_have_no_bars(network, drive, pyplot):
    axes = plot_spectrum(lyapunov_spectrum(network(state_size=4), drive(60, batch=1)))
    assert not axes.containers[0].has_yerr


def test_nothing_finite_is_nothing_to_draw(network, drive, pyplot):
    dead = network(state_size=4, activation="relu")
    with torch.no_grad():
        dead.recurrent[0].bias.fill_(-1e9)
    with pytest.raises(ConfigError, match="nothing to plot"):
        plot_gain_curve(gain_curve(dead, drive(60), [1.0, 2.0]))
    with pytest.raises(ConfigError, match="nothing to plot"):
        plot_spectrum(lyapunov_spectrum(dead, drive(60)))
