"""A step that pairs with nothing teaches COLA nothing of its coefficients."""

import pytest
import torch

from pararnn_cola import COLA, Network, stack_networks

NOBODY = torch.zeros(4, dtype=torch.bool)


def trained(network, project, lead=()):
    learner = COLA(network, project=project, rho_mu=0.5, rho_alpha=0.5, lr=0.0)
    for _ in range(6):
        learner.step(torch.randn(*lead, 4, 2), torch.randn(*lead, 4, 1))
    return learner


def coefficients(learner):
    return [values.clone() for values in (learner.statistics[0].alpha, learner.statistics[0].mu)]


@pytest.mark.parametrize("project", ["use", "estimate"])
@pytest.mark.parametrize("unseen", ["masked", "weightless", "begun"])
def test_a_step_without_a_pair_leaves_the_coefficients_as_they_are(project, unseen):
    learner = trained(Network.rnn(2, 4, 1, seed=0), project)
    before = coefficients(learner)
    if unseen == "begun":
        learner.reset(~NOBODY)
    given = {"masked": {"mask": NOBODY}, "weightless": {"weight": torch.zeros(4)}, "begun": {}}[unseen]
    learner.step(torch.randn(4, 2), torch.randn(4, 1), **given)
    torch.testing.assert_close(coefficients(learner), before, rtol=0, atol=0)


def test_in_an_ensemble_only_the_network_without_a_pair_keeps_its_coefficients():
    ensemble = stack_networks([Network.rnn(2, 4, 1, seed=seed) for seed in range(2)])
    learner = trained(ensemble, "estimate", lead=(2,))
    before = coefficients(learner)
    learner.step(torch.randn(2, 4, 2), torch.randn(2, 4, 1), mask=torch.stack((NOBODY, ~NOBODY)))
    for now, old in zip(coefficients(learner), before, strict=True):
        assert torch.equal(now[0], old[0])
        assert not torch.equal(now[1], old[1])


def test_statistics_tell_their_spans_in_a_line():
    statistics = trained(Network.rnn(2, 4, 1, seed=0), "use").statistics[0]
    alpha, mu = statistics.alpha, statistics.mu
    expected = f"ClosureStatistics((4,), alpha {alpha.min():.3g} to {alpha.max():.3g}, mu {mu.min():.3g} to {mu.max():.3g})"
    assert repr(statistics) == expected
