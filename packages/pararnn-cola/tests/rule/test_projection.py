"""What the projection promises of COLA's signal for any coefficients, slopes and signals."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cosine_similarity

from pararnn_cola import COLA, Network

UNITS = 4
MARGINS = st.sampled_from([0.02, 0.1, 0.3, 1.0])


def numbers(low, high):
    return st.lists(st.floats(low, high, allow_subnormal=False), min_size=UNITS, max_size=UNITS)


def gains(mu, slope, margin, project="use"):
    """`1 / (1 - mu p)` as the rule computes it."""
    rule = COLA(Network.rnn(1, UNITS, 1, seed=0, dtype=torch.float64), margin=margin, project=project)
    d = torch.ones(1, UNITS, dtype=torch.float64)
    from pararnn_cola.learners.statistics import ClosureStatistics

    statistics = ClosureStatistics(d[0], rule.closure)
    statistics.mu.copy_(torch.tensor(mu))
    return 1 / (1 - rule._feedback(rule.network.recurrent[0], statistics, torch.tensor([slope], dtype=torch.float64), 0.0))


@given(mu=numbers(-1e6, 1e6), slope=numbers(0, 5), margin=MARGINS)
def test_the_gain_lies_between_what_the_margin_allows(mu, slope, margin):
    gain = gains(mu, slope, margin)
    assert gain.min() >= 1 / (2 - margin) * (1 - 1e-12)
    assert gain.max() <= 1 / margin * (1 + 1e-12)


@given(mu=numbers(-1e6, 1e6), slope=numbers(0, 5), d=numbers(-10, 10), margin=MARGINS)
def test_no_signal_changes_its_sign(mu, slope, d, margin):
    signal = torch.tensor([d], dtype=torch.float64)
    assert torch.equal((signal * gains(mu, slope, margin)).sign(), signal.sign())


@given(mu=numbers(-1e3, 1e3), slope=numbers(0, 5), d=numbers(-10, 10), margin=MARGINS)
def test_the_angle_to_the_instantaneous_signal_obeys_the_bound_of_kantorovich(mu, slope, d, margin):
    signal = torch.tensor([d], dtype=torch.float64)
    if signal.norm() < 1e-6:
        return
    ratio = (2 - margin) / margin
    assert cosine_similarity(signal * gains(mu, slope, margin), signal).item() >= 2 * math.sqrt(ratio) / (1 + ratio) - 1e-12


def test_the_bound_of_the_angle_is_attained():
    d = torch.tensor([[1.0, math.sqrt(19.0)]], dtype=torch.float64)
    gain = gains([9.0, -9.0, 0.0, 0.0], [0.1] * 4, 0.1)[:, :2]
    torch.testing.assert_close(gain, torch.tensor([[10.0, 10 / 19]], dtype=torch.float64), rtol=1e-12, atol=0)
    assert cosine_similarity(d * gain, d).item() == pytest.approx(0.4358898943540674, rel=1e-12)


@given(mu=numbers(-1e3, 1e3), slope=numbers(0, 5), margin=MARGINS)
def test_projection_at_the_estimate_floors_the_denominator_and_keeps_the_sign(mu, slope, margin):
    gain = gains(mu, slope, margin, project="estimate")
    assert gain.min() > 0
    assert gain.max() <= 1 / margin * (1 + 1e-12)


def test_projection_at_the_estimate_bounds_mu_by_the_steepest_slope_of_the_batch(closure):
    rule = closure(3, project="estimate")
    for _ in range(50):
        slope = 0.2 + 0.5 * torch.rand(6, 3)
        rule.feed(torch.randn(6, 3), slope)
        assert (rule.statistics.mu.abs() <= 0.9 / slope.amax(0) * (1 + 1e-12)).all()


def test_both_projections_agree_while_no_bound_is_near(closure):
    truth, rules = torch.linspace(-0.5, 0.5, 8), [closure(8, alpha=0.9, project=project) for project in ("use", "estimate")]
    delta = torch.ones(1, 8)
    for _ in range(30):
        slope = 0.3 + 0.7 * torch.rand(1, 8)
        used = [rule.feed(delta * (1 - truth * slope), slope) for rule in rules]
        delta = 0.9 * delta
    torch.testing.assert_close(used[0], used[1], rtol=1e-12, atol=0)
