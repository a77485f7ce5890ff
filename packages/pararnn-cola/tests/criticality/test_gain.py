"""Near-critical initialisation: what it reaches, what it says, and what it leaves alone."""

import json
import math

import pytest
import torch
from torch import nn

from pararnn.errors import ConfigError, InputError, ShapeError
from pararnn_cola import (
    CellLayer,
    ConvLayer,
    CriticalityWarning,
    Network,
    RNNLayer,
    lyapunov_exponent,
    near_critical,
    operator_norm,
)
from pararnn_cola.criticality.search import Search, solve
from pararnn_cola.layers.activations import Activation

WIDE = torch.float64
SCALES = [0.1, 0.5, 1.0]
KINDS = ["gauss", "orthogonal"]


def recurrent(made):
    return made.recurrent[0].weight_hh.detach().clone()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("kind", KINDS)
def test_two_gains_bring_a_driven_network_near_the_edge(network, drive, kind, scale):
    report = near_critical(network(kind), drive(100, scale=scale), burn_in=0)
    assert -0.15 < report.exponent < 0.02
    assert report.mode == "two"
    assert len(report.trials) == 3
    assert report.converged == (abs(report.exponent) <= 0.05)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_steps_get_better_from_unit_over_two_to_secant(network, drive, kind, scale):
    inputs = drive(100, scale=scale)
    start = near_critical(network(kind), inputs, burn_in=0, mode="unit").trials[0].exponent
    reached = {mode: near_critical(network(kind), inputs, burn_in=0, mode=mode, target=0.0) for mode in ("unit", "two", "secant")}
    assert start < reached["unit"].exponent < -0.01
    assert abs(reached["two"].exponent) < abs(reached["unit"].exponent)
    assert reached["secant"].gain > reached["unit"].gain
    assert abs(reached["secant"].exponent) < 1e-4


@pytest.mark.parametrize("mode", ["secant", "bisect"])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("kind", KINDS)
def test_searches_meet_their_tolerance_on_the_stable_side(network, drive, kind, scale, mode):
    made = network(kind, 32)
    report = near_critical(made, drive(120, scale=scale), mode=mode)
    assert report.converged
    assert report.mode == mode
    assert abs(report.exponent + 0.005) < 1e-4
    assert report.exponent < 0


def test_the_reported_exponent_and_norm_are_those_of_the_network_afterwards(network, drive):
    made, inputs = network(state_size=32), drive(120)
    report = near_critical(made, inputs, mode="secant")
    assert lyapunov_exponent(made, inputs).exponent == pytest.approx(report.exponent, abs=1e-12)
    assert operator_norm(made) == pytest.approx(report.gain, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_both_models_are_exact_for_a_linear_network(network, drive, kind):
    reports = [near_critical(network(kind, activation="linear"), drive(100), mode=mode, burn_in=0) for mode in ("unit", "two")]
    for report in reports:
        assert abs(report.exponent) < 1e-15
        assert report.converged
    assert reports[0].gain == pytest.approx(reports[1].gain, rel=1e-13)


@pytest.mark.parametrize("mode", ["secant", "bisect"])
def test_where_no_gain_reaches_the_target_the_largest_exponent_is_taken_and_told(network, drive, mode):
    made, inputs = network("identity-like"), drive(100)
    with pytest.warns(CriticalityWarning, match="stays below"):
        report = near_critical(made, inputs, mode=mode, burn_in=0)
    assert not report.converged
    assert math.isfinite(report.gain)
    assert report.exponent == max(trial.exponent for trial in report.trials) < -0.005
    assert operator_norm(made) == pytest.approx(report.gain, rel=1e-12)


def test_one_step_on_such_a_network_is_finite_and_not_converged(network, drive):
    report = near_critical(network("identity-like"), drive(100), burn_in=0)
    assert math.isfinite(report.gain)
    assert not report.converged


def test_a_falling_exponent_leads_to_bisection():
    for mode in ("two", "secant"):
        search = Search(lambda gain: -math.log(gain) - 1, 0.0, 1e-6, math.log(1e-3), math.log(1e3))
        found = solve(search, mode, 1.2)
        assert found.mode == "bisect"
        assert "hardly rises" in found.why
        assert found.trial.gain == pytest.approx(math.exp(-1), rel=1e-5)


def test_a_peak_between_two_trials_is_found():
    def narrow(gain):
        return 0.02 - 40 * (math.log(gain) - 1.2345) ** 2

    search = Search(narrow, 0.0, 1e-6, math.log(1e-3), math.log(1e3))
    found = solve(search, "bisect", 1.2)
    assert not found.rootless
    assert abs(narrow(found.trial.gain)) <= 1e-6


def test_a_jump_over_the_target_ends_just_below_it():
    search = Search(lambda gain: -1.0 if gain < 3.7 else 2.0, 0.0, 1e-6, math.log(1e-3), math.log(1e3))
    for mode in ("secant", "bisect"):
        found = solve(search, mode, 1.2)
        assert not search.met(found.trial)
        assert found.trial.exponent == -1.0
        assert found.trial.gain == pytest.approx(3.7, rel=1e-8)
        assert "jumps" in found.why


def test_an_exponent_within_the_tolerance_has_converged_though_no_gain_meets_the_target(network, drive):
    report = near_critical(network("identity-like"), drive(100), mode="bisect", target=0.0, tolerance=0.06, burn_in=0)
    assert -0.06 <= report.exponent < 0
    assert report.converged


def test_a_peak_below_the_target_but_within_the_tolerance_is_met():
    search = Search(lambda gain: -0.05 - (math.log(gain) - 2) ** 2, 0.0, 0.1, math.log(1e-3), math.log(1e3))
    found = solve(search, "bisect", 1.2)
    assert search.met(found.trial)
    assert "within the tolerance" in found.why


def test_behind_a_jump_the_search_goes_on_to_the_other_side():
    # The units saturate all at once above gain 40, where the exponent falls to -inf; below 1 it falls as the logarithm.
    search = Search(lambda gain: -math.inf if gain > 40 else min(math.log(gain), 0.0) - 0.1, -5.0, 1e-6, math.log(1e-3), math.log(1e3))
    for mode in ("secant", "bisect"):
        found = solve(search, mode, 1.2)
        assert search.met(found.trial)
        assert found.trial.gain == pytest.approx(math.exp(-4.9), rel=1e-5)


def test_a_network_is_not_left_dead_where_others_are_to_be_had(drive):
    made = RNNLayer(3, 16, generator=torch.Generator().manual_seed(1))
    report = near_critical(made, torch.randn(4, 120, 3, generator=torch.Generator().manual_seed(2)), mode="bisect", target=-7.0)
    assert report.converged
    assert report.gain < 0.1


def test_a_jump_to_minus_infinity_and_nothing_else_ends_above_it():
    search = Search(lambda gain: -math.inf if gain > 3 else -1.0, -2.0, 1e-6, math.log(1e-3), math.log(1e3))
    found = solve(search, "bisect", 1.2)
    assert found.trial.exponent == -1.0
    assert "below it is -inf" in found.why


def test_exponents_that_stay_above_the_target_give_the_nearest():
    search = Search(lambda gain: 1 + math.log(gain) ** 2, 0.0, 1e-6, math.log(1e-3), math.log(1e3))
    found = solve(search, "bisect", 1.2)
    assert found.trial.exponent == 1.0
    assert "stays above" in found.why


def test_states_that_leave_the_numbers_at_every_gain_are_an_error_and_the_weights_stay(network, drive):
    made = network(state_size=4)
    with torch.no_grad():
        made.recurrent[0].weight_ih.fill_(math.nan)
    before = recurrent(made)
    for mode in ("unit", "two", "secant", "bisect"):
        with pytest.raises(InputError, match="became infinite or NaN at each of"):
            near_critical(made, drive(60), mode=mode)
        assert torch.equal(recurrent(made), before)


@pytest.mark.parametrize("mode", ["unit", "two", "secant", "bisect"])
@pytest.mark.parametrize("curve", [lambda g: math.nan, lambda g: -math.inf, lambda g: -1.0, lambda g: 1.0, lambda g: -math.log(g) - 1], ids=range(5))
def test_no_curve_leads_to_a_gain_that_is_not_finite(curve, mode):
    search = Search(curve, 0.0, 1e-4, math.log(1e-3), math.log(1e3))
    found = solve(search, mode, 1.2)
    assert 1e-3 * (1 - 1e-12) <= found.trial.gain <= 1e3 * (1 + 1e-12)
    assert all(math.isfinite(trial.gain) for trial in search.trials)


def test_a_relu_network_that_blows_up_at_large_gains_is_brought_to_the_edge(network, drive):
    made = network(state_size=24, activation="relu", gain=5.0)
    report = near_critical(made, drive(150), mode="bisect", tolerance=0.02)
    assert report.converged
    assert abs(report.exponent + 0.005) <= 0.02


def test_dead_units_are_told_and_the_gain_stays_one(network, drive):
    dead = network(state_size=8, activation="relu")
    with torch.no_grad():
        dead.recurrent[0].bias.fill_(-1e9)
    with pytest.warns(CriticalityWarning, match="stays below"):
        report = near_critical(dead, drive(60))
    assert report.gain == 1.0
    assert report.exponent == -math.inf
    assert not report.converged
    assert dead.recurrent[0].weight_hh.isfinite().all()


def test_the_same_call_gives_the_same_bits(network):
    outcomes = []
    for _ in range(2):
        made = network(state_size=16)
        with pytest.warns(CriticalityWarning, match="standard normal") as told:
            report = near_critical(made, mode="secant")
        assert len(told) == 1
        outcomes.append((report, recurrent(made)))
    assert outcomes[0][0] == outcomes[1][0]
    assert torch.equal(outcomes[0][1], outcomes[1][1])
    assert "made up" in outcomes[0][0].inputs


def test_only_recurrent_weights_change_and_random_numbers_are_not_drawn(network, drive):
    made, state = network(state_size=16), torch.get_rng_state()
    before = {name: value.clone() for name, value in made.state_dict().items()}
    near_critical(made, drive(100))
    assert torch.equal(state, torch.get_rng_state())
    changed = [name for name, value in made.state_dict().items() if not torch.equal(value, before[name])]
    assert changed == ["layers.0.weight_hh"]
    direction = before["layers.0.weight_hh"] / operator_norm(before["layers.0.weight_hh"])
    torch.testing.assert_close(recurrent(made), direction * operator_norm(made), rtol=0, atol=1e-15)
    assert made.recurrent[0].weight_hh.requires_grad
    assert made.recurrent[0].weight_hh.grad is None


def test_an_error_leaves_the_network_as_it_was(drive):
    calls = 0

    def fragile(x):
        nonlocal calls
        calls += 1
        if calls == 150:
            raise KeyboardInterrupt
        return torch.tanh(x)

    made = Network.rnn(3, 8, 1, activation=Activation("fragile", fragile, lambda x, output: 1 - output * output), seed=0, dtype=WIDE)
    before = recurrent(made)
    with pytest.raises(KeyboardInterrupt):
        near_critical(made, drive(60))
    assert torch.equal(recurrent(made), before)
    with pytest.raises(ShapeError):
        near_critical(made, drive(60, input_size=5))
    assert torch.equal(recurrent(made), before)


def test_an_error_in_an_upper_layer_restores_the_lower_one(network, drive):
    made = network(state_size=8, num_layers=2)
    with torch.no_grad():
        made.recurrent[1].weight_hh.zero_()
    before = recurrent(made)
    with pytest.raises(ConfigError, match="are zero"):
        near_critical(made, drive(60))
    assert torch.equal(recurrent(made), before)


def test_layers_of_a_stack_are_done_from_below_each_under_its_own_drive(network, drive):
    made, inputs = network(state_size=32, num_layers=2), drive(120, scale=0.3)
    report = near_critical(made, inputs, mode="secant")
    assert report.converged
    assert len(report.gains) == len(report.layers) == 2
    for index, one in enumerate(report.layers):
        assert lyapunov_exponent(made, inputs, layer=index).exponent == pytest.approx(one.exponent, abs=1e-12)
        assert abs(one.exponent + 0.005) < 1e-4
    alone = network(state_size=32, num_layers=2).recurrent[0]
    assert near_critical(alone, inputs, mode="secant").gain == pytest.approx(report.gains[0], rel=1e-14)
    assert report.exponent == max(one.exponent for one in report.layers)
    assert report.gain == report.critical.gain


def test_a_convolution_is_brought_to_the_edge():
    layer = ConvLayer(1, 2, 3, size=(4, 4), generator=torch.Generator().manual_seed(0), dtype=WIDE)
    inputs = torch.randn(4, 60, 1, 4, 4, generator=torch.Generator().manual_seed(1), dtype=WIDE)
    for method in ("product", "qr"):
        report = near_critical(layer, inputs, mode="secant", method=method, tolerance=1e-3)
        assert report.converged
        assert operator_norm(layer) == pytest.approx(report.gain, rel=1e-4)


def test_made_up_maps_have_the_size_of_the_layer():
    layer = ConvLayer(2, 1, 3, size=(3,), generator=torch.Generator().manual_seed(0), dtype=WIDE)
    with pytest.warns(CriticalityWarning, match="standard normal"):
        assert near_critical(layer, mode="unit", burn_in=0).steps == 200


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.RNNCell], ids=lambda kind: kind.__name__)
def test_modules_of_torch_are_brought_to_the_edge(drive, kind):
    torch.manual_seed(0)
    module = kind(3, 8, dtype=WIDE)
    report = near_critical(module, 0.3 * drive(80), mode="secant", target=-0.02)
    assert report.converged
    assert lyapunov_exponent(module, 0.3 * drive(80)).exponent == pytest.approx(-0.02, abs=1e-4)


def test_a_cell_is_brought_to_the_edge_by_the_weight_that_is_named(drive):
    inner = RNNLayer(3, 8, generator=torch.Generator().manual_seed(0), dtype=WIDE)
    with pytest.raises(ConfigError, match="weight="):
        near_critical(CellLayer(inner), drive(80))
    inputs = drive(80, scale=0.3)
    report = near_critical(CellLayer(inner), inputs, weight=inner.weight_hh, mode="secant")
    assert report.converged
    plain = RNNLayer(3, 8, generator=torch.Generator().manual_seed(0), dtype=WIDE)
    assert near_critical(plain, inputs, mode="secant").gain == pytest.approx(report.gain, rel=1e-9)


def test_a_weight_that_its_cell_limits_is_told(drive):
    cfc = pytest.importorskip("pararnn_cfc")
    torch.manual_seed(0)
    cell, inputs = cfc.ParaCfC(3, 6, dtype=WIDE), drive(80)
    inputs[..., -1].abs_()
    with pytest.warns(CriticalityWarning, match="stays below"):
        report = near_critical(cell, inputs, weight=cell.u, mode="bisect")
    assert not report.converged
    assert math.isfinite(report.gain)


def test_float32_networks_are_brought_to_the_edge(network, drive):
    made = network(state_size=16).float()
    assert near_critical(made, drive(120), mode="secant").converged
    assert made.recurrent[0].weight_hh.dtype == torch.float32


def test_bfloat16_networks_come_as_near_as_their_weights_can_say(network, drive):
    made, inputs = network(state_size=16).bfloat16(), drive(120).bfloat16()
    report = near_critical(made, inputs, mode="bisect", tolerance=0.05)
    assert report.converged
    assert made.recurrent[0].weight_hh.dtype == torch.bfloat16


def test_the_report_is_plain_data_and_readable(network, drive):
    report = near_critical(network(state_size=8, num_layers=2), drive(60))
    told = json.loads(json.dumps(report.to_dict()))
    assert told["gain"] == report.gain
    assert len(told["layers"]) == 2
    assert told["layers"][0]["trials"][0]["gain"] == 1.0
    assert str(report).count("\n") == 2
    assert "local model" in str(report)
