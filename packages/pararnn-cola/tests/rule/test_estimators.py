"""What COLA's two estimators give: where they are right, and, on purpose, where they are not.

The degenerate and the biased cases follow from the equations of the source. They stand here so that nobody "repairs" the estimator in silence.
"""

import math

import pytest
import torch

from pararnn_cola.learners.statistics import ClosureConfig, ClosureStatistics

COEFFICIENT = 0.8


def errors_of_alpha(rho, batch, *, units, steps, every=500):
    """`alpha - 0.8` of an autoregressive signal at several times after the start has been forgotten."""
    statistics = ClosureStatistics(torch.zeros(units), ClosureConfig(rho_alpha=rho))
    signal, errors = torch.zeros(batch, units), []
    for step in range(steps):
        following = COEFFICIENT * signal + torch.randn(batch, units)
        if step:
            statistics.observe_alpha((following * signal).mean(0), (signal * signal).mean(0), None)
        signal = following
        if step > steps // 2 and step % every == 0:
            errors.append(statistics.alpha - COEFFICIENT)
    return torch.stack(errors)


def predicted_spread(rho, batch):
    return math.sqrt((1 - rho) / (1 + rho) * (1 - COEFFICIENT**2) / batch)


@pytest.mark.parametrize(("rho", "batch", "units"), [(0.99, 1, 1024), (0.99, 64, 256), (0.999, 1, 1024), (0.999, 64, 64)])
def test_alpha_finds_an_autoregressive_coefficient_with_the_spread_that_theory_says(rho, batch, units):
    errors = errors_of_alpha(rho, batch, units=units, steps=6000)
    spread = predicted_spread(rho, batch)
    assert abs(errors.mean().item()) < 5 * spread
    assert errors.std().item() == pytest.approx(spread, rel=0.15)


@pytest.mark.parametrize(("rho", "bias", "within"), [(0.9, -0.061, 0.01), (0.99, -0.007, 0.004)])
def test_alpha_of_few_samples_is_biased_towards_zero(rho, bias, within):
    errors = errors_of_alpha(rho, 1, units=2048, steps=1200, every=50)
    assert errors.mean().item() == pytest.approx(bias, abs=within)


def test_alpha_stays_in_its_bound_where_the_signal_grows(closure):
    rule = closure(4, alpha_bound=0.9)
    for step in range(20):
        rule.feed(torch.full((2, 4), 1.5**step), torch.ones(2, 4))
    assert torch.equal(rule.statistics.alpha, torch.full((4,), 0.9))


@pytest.mark.parametrize("alpha", [0.9, -0.9, 0.99])
def test_mu_is_recovered_from_signals_without_noise_where_alpha_is_known(alpha, closure):
    truth = torch.linspace(-0.6, 0.6, 16)
    rule, delta = closure(16, alpha=alpha), torch.ones(1, 16)
    for _ in range(100):
        slope = 0.3 + 0.7 * torch.rand(1, 16)
        rule.feed(delta * (1 - truth * slope), slope)
        delta = alpha * delta
    assert (rule.statistics.mu - truth).abs().max() < 1e-12


@pytest.mark.parametrize("slope", [1.0, 0.5])
def test_a_constant_slope_drives_mu_to_its_inverse_and_the_gain_to_its_cap_whatever_the_data(slope, closure):
    rule = closure(4)
    slopes = torch.full((5, 4), slope)
    for _ in range(300):
        d = torch.randn(5, 4)
        used = rule.feed(d, slopes)
    torch.testing.assert_close(rule.statistics.mu, torch.full((4,), 1 / slope), rtol=0, atol=1e-9)
    torch.testing.assert_close(used / d, torch.full((5, 4), 10.0), rtol=0, atol=1e-9)


def test_mu_of_a_noisy_signal_is_pulled_towards_the_inverse_slope(closure):
    """Errors in variables: the true values come back only where the signal decays as alpha says, almost without noise."""
    truth, alpha = torch.tensor([-0.6, -0.3, 0.0, 0.3, 0.6, 0.9]), 0.9
    rule, delta = closure(6, alpha=alpha, rho_mu=0.999), torch.randn(256, 6)
    for _ in range(1500):
        slope = 0.3 + 0.7 * torch.rand(256, 6)
        rule.feed(delta * (1 - truth * slope), slope)
        delta = alpha * delta + math.sqrt(1 - alpha**2) * torch.randn(256, 6)
    found = [0.84, 0.82, 0.80, 0.81, 0.87, 1.01]
    torch.testing.assert_close(rule.statistics.mu, torch.tensor(found), rtol=0, atol=0.03)


def test_both_estimators_together_settle_near_one_whatever_the_truth(closure):
    """A bootstrap: alpha comes from signals that mu has made. It does not find planted values even without noise."""
    truth = torch.linspace(-0.6, 0.6, 16)
    rule, delta = closure(16, rho_alpha=0.999, rho_mu=0.999), torch.ones(64, 16)
    for step in range(3000):
        slope = 0.3 + 0.7 * torch.rand(64, 16)
        rule.feed(delta * (1 - truth * slope), slope)
        delta = 0.9 * delta * (1 / 0.9 if step % 50 == 49 else 1)
        delta = torch.where(delta.abs() < 1e-3, torch.ones_like(delta), delta)
    assert (rule.statistics.mu - truth).abs().min() > 0.2
    assert ((rule.statistics.mu > 0.8) & (rule.statistics.mu < 1.3)).all()


def test_a_unit_without_signal_has_coefficients_of_zero_even_without_eps(closure):
    rule = closure(3, eps=0.0)
    for _ in range(5):
        d = torch.randn(4, 3) * torch.tensor([1.0, 0.0, 1.0])
        used = rule.feed(d, torch.rand(4, 3))
    assert rule.statistics.mu[1] == 0 == rule.statistics.alpha[1]
    assert used.isfinite().all()
