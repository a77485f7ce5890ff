"""The closure of a leaky unit, `d / (1 - leak alpha - mu p)`, on signals made so that it holds."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from pararnn_cola import COLA, LeakyLayer, Network, Readout
from pararnn_cola.layers.base import Moment
from pararnn_cola.learners.rows import Rows

ROWS = Rows(None, True, 1.0)


def planted(leaks, alpha, mu, length, size=5, batch=3):
    """Instantaneous signals, slopes and leaks of which `d / (1 - leak alpha - mu p)` decays by `alpha` exactly."""
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(batch, size, generator=generator, dtype=torch.float64)
    for step in range(length):
        p = 0.3 + 0.7 * torch.rand(batch, size, generator=generator, dtype=torch.float64)
        leak = leaks if isinstance(leaks, float) else leaks[step]
        yield exact * (1 - leak * alpha - mu * p), p, leak, exact
        exact = alpha * exact


@pytest.mark.parametrize("varying", [False, True], ids=["one leak", "a leak each step and sample"])
@pytest.mark.parametrize("alpha", [0.9, -0.7])
def test_a_planted_mu_is_found_and_its_closure_gives_the_planted_signals(varying, alpha):
    leaks = torch.rand(12, 3, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 0.4 if varying else 0.3
    mu = torch.linspace(-0.4, 0.4, 5, dtype=torch.float64)
    learner = COLA(Network(LeakyLayer(2, 5, dtype=torch.float64), Readout(5, 1, dtype=torch.float64)))
    layer = learner.network.recurrent[0]
    nothing = torch.zeros(3, 5, dtype=torch.float64)
    for step, (d, p, leak, exact) in enumerate(planted(leaks, alpha, mu, 12)):
        used = learner._signal(0, layer, Moment(nothing, nothing, nothing, p, leak), d, ROWS)
        if step >= 2:
            assert_close(learner.statistics[0].mu, mu, rtol=0, atol=1e-12)
        if step >= 3:
            assert_close(used, exact, rtol=1e-10, atol=1e-14)
        statistics = learner.statistics[0]
        # Alpha is given, not estimated: what is tested is the algebra of mu.
        statistics.observe_alpha = lambda *means: None
        statistics.alpha.fill_(alpha)


def test_the_bound_is_on_leak_and_feedback_together():
    learner = COLA(Network(LeakyLayer(2, 5, dtype=torch.float64), Readout(5, 1, dtype=torch.float64)), margin=0.1)
    layer = learner.network.recurrent[0]
    nothing, d = torch.zeros(3, 5, dtype=torch.float64), torch.ones(3, 5, dtype=torch.float64)
    moment = Moment(nothing, nothing, nothing, d, 0.95)
    learner._signal(0, layer, moment, d, ROWS)
    learner.statistics[0].alpha.fill_(0.9)
    for mu, gain in ((0.5, 10.0), (-5.0, 1 / 1.9), (0.0, 1 / (1 - 0.95 * 0.9))):
        learner.statistics[0].mu.fill_(mu)
        feedback = learner._feedback(layer, learner.statistics[0], d, 0.95)
        assert_close(d / (1 - feedback), torch.full_like(d, gain), rtol=1e-12, atol=0)
