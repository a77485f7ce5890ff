"""Alignment in cases where it is known."""

import json
import math

import pytest
import torch

from pararnn.errors import ConfigError, InputError, ShapeError
from pararnn_cola import (
    BPTT,
    COLA,
    RTRL,
    TBPTT,
    TBPTT1,
    UORO,
    CellLayer,
    EProp,
    LeakyLayer,
    Network,
    Readout,
    RNNLayer,
    SnAp1,
    closure_solve,
    exact_signals,
    measure_alignment,
    plot_alignment,
    track_alignment,
)
from pararnn_cola.alignment import measures
from pararnn_cola.alignment.closure import best_feedback, close

WIDE = torch.float64


def test_a_single_step_is_exact_in_every_rule(network, sequences):
    for rule in (COLA, TBPTT1):
        report = measure_alignment(rule(network()), sequences(1))
        (layer,) = report.layers
        assert layer.signal == pytest.approx(1.0, abs=1e-14)
        assert layer.instantaneous == pytest.approx(1.0, abs=1e-14)
        assert layer.sign == 1.0
        assert layer.norm == pytest.approx(1.0, abs=1e-14)
        assert layer.persistence is None
        assert all(gradient.cosine is None or gradient.cosine == pytest.approx(1.0, abs=1e-13) for gradient in report.gradients.values())
        # The state before the first step is zero, so recurrent weights have no gradient, and nothing to compare.
        assert report.gradients["layers.0.weight_hh"].cosine is None


def test_without_recurrent_weights_the_instantaneous_signal_is_exact(network, sequences):
    report = measure_alignment(TBPTT1(network(gain=0.0)), sequences())
    assert report.layers[0].signal == pytest.approx(1.0, abs=1e-14)
    assert report.layers[0].closure == pytest.approx(1.0, abs=1e-14)
    assert all(gradient.cosine == pytest.approx(1.0, abs=1e-13) for gradient in report.gradients.values())


@pytest.mark.parametrize("rule", [BPTT, RTRL, lambda made: TBPTT(made, 12)], ids=["BPTT", "RTRL", "TBPTT"])
def test_exact_rules_have_exact_gradients_and_no_signals(network, sequences, rule):
    report = measure_alignment(rule(network()), sequences())
    assert all(gradient.cosine == pytest.approx(1.0, abs=1e-12) for gradient in report.gradients.values())
    assert all(gradient.norm == pytest.approx(1.0, abs=1e-12) for gradient in report.gradients.values())
    assert report.layers[0].signal is None
    assert report.layers[0].instantaneous is not None


def test_a_gain_changes_norms_and_no_cosine(network, sequences):
    plain, times = (measure_alignment(TBPTT1(network(), hidden_gain=gain), sequences()) for gain in (1.0, 4.0))
    assert times.layers[0].signal == pytest.approx(plain.layers[0].signal, abs=1e-14)
    assert times.layers[0].gain == pytest.approx(4.0, abs=1e-12)
    assert times.layers[0].norm == pytest.approx(4 * plain.layers[0].norm, rel=1e-12)
    assert times.gradients["layers.0.bias"].norm == pytest.approx(4 * plain.gradients["layers.0.bias"].norm, rel=1e-12)
    assert times.gradients["readout.weight"].norm == pytest.approx(1.0, abs=1e-12)


def test_the_closure_is_exact_where_its_assumption_holds(sequences):
    # Linear units apart from each other, W = 0.5, and a signal that is the same at each step: delta is geometric in the time left.
    length, weight = 40, 0.5
    instantaneous, slope = torch.ones(1, length, 3, dtype=WIDE), torch.ones(1, length, 3, dtype=WIDE)
    delta = torch.stack([(1 - weight ** (length - torch.arange(length, dtype=WIDE))) / (1 - weight)] * 3, -1).unsqueeze(0)
    early = slice(0, 10)
    alpha = torch.ones(3, dtype=WIDE)
    mu = best_feedback(delta[:, early], instantaneous[:, early], slope[:, early], 0.0, alpha)
    torch.testing.assert_close(mu, torch.full((3,), weight, dtype=WIDE), rtol=1e-8, atol=0)
    torch.testing.assert_close(close(instantaneous, slope, 0.0, alpha, mu, 0.1)[:, early], delta[:, early], rtol=1e-8, atol=0)
    solved = closure_solve(instantaneous, slope, weight * torch.eye(3, dtype=WIDE), 1.0)
    torch.testing.assert_close(solved[:, early], delta[:, early], rtol=1e-8, atol=0)


def test_a_diagonal_linear_network_has_the_signals_of_its_units_alone(network, sequences):
    made, batch = network(4, activation="linear"), sequences(weights="last")
    decay = torch.tensor([0.9, 0.5, -0.3, 0.0], dtype=WIDE)
    with torch.no_grad():
        made.recurrent[0].weight_hh.copy_(torch.diag(decay))
    delta = exact_signals(made, batch.inputs, batch.targets, batch.weights).delta[0]
    powers = decay ** torch.arange(batch.length - 1, -1, -1).unsqueeze(-1)
    torch.testing.assert_close(delta, powers * delta[:, -1:], rtol=0, atol=1e-14)
    alpha, explained = measures.persistence(delta[..., :3])
    torch.testing.assert_close(alpha, 1 / decay[:3], rtol=1e-10, atol=0)
    assert explained == pytest.approx(1.0, abs=1e-12)


def test_a_loss_at_the_end_alone_gives_no_signal_before(network, sequences):
    report = measure_alignment(COLA(network()), sequences(weights="last"))
    assert report.layers[0].signal == 0.0
    assert report.layers[0].instantaneous == 0.0
    assert report.layers[0].sign == 0.0
    assert report.layers[0].gain == 1.0


def test_cola_keeps_signs_within_its_gains(network, sequences):
    learner = COLA(network(16, gain=1.5), margin=0.2)
    report = measure_alignment(learner, sequences(60), warmup=3)
    plain = measure_alignment(TBPTT1(network(16, gain=1.5)), sequences(60))
    assert report.layers[0].sign == plain.layers[0].sign
    assert report.layers[0].instantaneous == plain.layers[0].instantaneous
    assert 1 / 1.8 <= report.layers[0].gain <= 5.0
    assert 0 <= report.layers[0].at_cap <= 1
    assert plain.layers[0].at_cap is None


def test_constant_slopes_put_every_gain_at_the_cap(network, sequences):
    report = measure_alignment(COLA(network(8, activation="linear", gain=0.3)), sequences(40), warmup=10)
    assert report.layers[0].gain == pytest.approx(10.0, rel=1e-6)
    assert report.layers[0].at_cap > 0.95


@pytest.mark.parametrize("seen", [0, 5], ids="after{}".format)
@pytest.mark.parametrize(
    "rule",
    [COLA, TBPTT1, BPTT, lambda made: TBPTT(made, 3), lambda made: TBPTT(made, 2, 4), SnAp1, RTRL, EProp, UORO],
    ids=["COLA", "TBPTT1", "BPTT", "TBPTT3", "TBPTT24", "SnAp1", "RTRL", "EProp", "UORO"],
)
def test_measuring_leaves_a_learner_to_go_on_bit_for_bit(network, sequences, rule, seen):
    batch, other = sequences(8), sequences(9, batch=4, seed=8)
    outcomes = []
    for measured in (False, True):
        torch.manual_seed(5)
        learner = rule(network())
        for index, step in enumerate(batch.steps()):
            if measured and index == seen:
                before = {name: value.clone() for name, value in learner.network.state_dict().items()}
                assert measure_alignment(learner, other).rule == type(learner).__name__
                assert all(torch.equal(before[name], value) for name, value in learner.network.state_dict().items())
            learner.step(step.u, step.y, step.weight)
        learner.apply()
        outcomes.append([parameter.detach().clone() for parameter in learner.network.parameters()])
    assert all(torch.equal(one, two) for one, two in zip(*outcomes, strict=True))


def test_what_a_learner_knows_of_the_network_is_used(network, sequences):
    batch = sequences(40)
    fresh, warm = COLA(network(), lr=0.0), COLA(network(), lr=0.0)
    for step in batch.steps():
        warm.step(step.u, step.y, step.weight)
    assert measure_alignment(warm, batch).layers[0] == measure_alignment(fresh, batch, warmup=1).layers[0]
    assert measure_alignment(warm, batch).layers[0] != measure_alignment(fresh, batch).layers[0]


def test_every_layer_of_a_stack_is_compared(network, sequences):
    report = measure_alignment(COLA(network(num_layers=2)), sequences(ragged=True))
    assert len(report.layers) == 2
    assert report.gradients.keys() == dict(network(num_layers=2).named_parameters()).keys()
    assert all(math.isfinite(layer.signal) for layer in report.layers)


def test_leaky_layers_are_closed_with_their_leak(sequences):
    generator = torch.Generator().manual_seed(0)
    made = Network(LeakyLayer(3, 5, leak=0.5, generator=generator, dtype=WIDE), Readout(5, 2, generator=generator, dtype=WIDE))
    report = measure_alignment(COLA(made), sequences(20))
    assert -1 <= report.layers[0].closure <= 1
    assert -1 <= report.layers[0].signal <= 1


def test_layers_without_slopes_have_no_closure(sequences):
    generator = torch.Generator().manual_seed(0)
    made = Network(CellLayer(RNNLayer(3, 5, generator=generator, dtype=WIDE)), Readout(5, 2, generator=generator, dtype=WIDE))
    report = measure_alignment(BPTT(made), sequences())
    assert report.layers[0].closure is None
    assert report.layers[0].instantaneous is not None


def test_the_report_is_plain_data_and_a_table(network, sequences):
    report = measure_alignment(COLA(network()), sequences())
    told = json.loads(json.dumps(report.to_dict()))
    assert told["layers"][0]["signal"] == report.layers[0].signal
    lines = str(report).splitlines()
    assert lines[0].startswith("COLA beside BPTT, 5 sequences of 12 steps")
    assert len(lines) == 1 + 2 + 1 + 6
    assert len(lines[1]) == len(lines[2])


def test_half_precision_networks_are_measured(network, sequences):
    report = measure_alignment(COLA(network(dtype=torch.bfloat16)), sequences(dtype=torch.bfloat16))
    assert report.gradients["readout.weight"].cosine == pytest.approx(1.0, abs=0.05)


def test_a_negative_warmup_is_refused(network, sequences):
    with pytest.raises(ConfigError, match="warmup"):
        measure_alignment(COLA(network()), sequences(), warmup=-1)


def test_cosines_are_safe_at_any_scale():
    vectors = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=WIDE)
    assert measures.cosine(vectors * 1e-200, vectors * 1e200) == pytest.approx(1.0, abs=1e-14)
    assert measures.cosine(vectors, torch.zeros_like(vectors)) is None
    assert measures.cosine(torch.zeros_like(vectors), vectors) == 0.0
    assert measures.cosine(-vectors, vectors) == pytest.approx(-1.0, abs=1e-14)


def test_participation_counts_directions():
    lines = torch.zeros(1, 6, 6, dtype=WIDE)
    lines[0, :, 0] = 1.0
    assert measures.participation_ratio(lines) == pytest.approx(1.0)
    assert measures.participation_ratio(torch.eye(6, dtype=WIDE).unsqueeze(0)) == pytest.approx(6.0)
    assert measures.participation_ratio(torch.zeros(1, 2, 3, dtype=WIDE)) is None


def test_the_system_behind_the_closure_is_solved(network, sequences):
    made, batch = network(gain=0.5), sequences()
    exact = exact_signals(made, batch.inputs, batch.targets, batch.weights)
    weight, alpha = made.recurrent[0].weight_hh.detach(), torch.linspace(-0.5, 0.9, 6, dtype=WIDE)
    delta = closure_solve(exact.instantaneous[0], exact.slopes[0], weight, alpha)
    torch.testing.assert_close(delta, exact.instantaneous[0] + exact.slopes[0] * ((alpha * delta) @ weight), rtol=0, atol=1e-13)
    assert torch.equal(closure_solve(exact.instantaneous[0], exact.slopes[0], weight, 0.0), exact.instantaneous[0])


def test_a_system_without_a_solution_is_told():
    ones = torch.ones(2, 3, dtype=WIDE)
    with pytest.raises(InputError, match="2 of 2 systems"):
        closure_solve(ones, ones, torch.eye(3, dtype=WIDE), 1.0)
    with pytest.raises(ShapeError, match="do not fit"):
        closure_solve(ones, ones, torch.eye(4, dtype=WIDE), 1.0)


@pytest.mark.parametrize("update", ["step", "accumulate"])
def test_tracking_trains_as_if_nobody_looked(network, sequences, update):
    batches = [sequences(seed=seed) for seed in range(5)]
    tracked_learner, plain = (COLA(network(), lr=0.05, update=update) for _ in range(2))
    tracked = track_alignment(tracked_learner, iter(batches), every=2)
    for batch in batches:
        plain.init(batch.size)
        for step in batch.steps():
            plain.step(step.u, step.y, step.weight, step.mask)
        plain.apply()
    assert [entry.batches for entry in tracked] == [0, 2, 4, 5]
    assert math.isnan(tracked[0].loss)
    assert all(torch.equal(one, two) for one, two in zip(tracked_learner.network.parameters(), plain.network.parameters(), strict=True))
    assert tracked[-1].report == measure_alignment(plain, batches[0])


def test_tracking_needs_batches(network):
    with pytest.raises(ConfigError, match="no batches"):
        track_alignment(COLA(network()), [])
    with pytest.raises(ConfigError, match="every=0"):
        track_alignment(COLA(network()), [], every=0)


def test_tracked_cosines_are_drawn_over_batches(network, sequences):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    tracked = track_alignment(COLA(network()), [sequences(seed=seed) for seed in range(3)], every=2)
    axes = plot_alignment(tracked)
    assert [line.get_label() for line in axes.lines] == ["COLA", "instantaneous d", "best closure"]
    assert list(axes.lines[0].get_xdata()) == [0, 2, 3]
    assert axes.lines[0].get_ydata() == pytest.approx([entry.report.layers[0].signal for entry in tracked])
    with pytest.raises(ConfigError, match="layer=1"):
        plot_alignment(tracked, layer=1)
    with pytest.raises(ConfigError, match="no measurement"):
        plot_alignment([])
    matplotlib.pyplot.close("all")
