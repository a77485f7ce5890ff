"""What must not matter: the scale of the loss, and how often a sample stands in the batch."""

import pytest
import torch

from pararnn_cola import COLA

SHRINK = 2.0**-12


def scaled(learn, network, sequence, factor, **options):
    inputs, targets, weights = sequence
    gradients, signals, learner = learn(COLA, network(), inputs, targets, weights * factor, **options)
    return {name: gradient / factor for name, gradient in gradients.items()}, signals, learner.statistics[0]


@pytest.mark.parametrize("eps", [None, 0.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_rescaled_loss_rescales_signals_and_leaves_the_coefficients_to_the_bit(eps, dtype, network, sequence, learn):
    sequence = tuple(tensor.to(dtype) for tensor in sequence)

    def make():
        return network(dtype=dtype)

    plain, signals, statistics = scaled(learn, make, sequence, 1.0, eps=eps)
    shrunk, small, others = scaled(learn, make, sequence, SHRINK, eps=eps)
    assert torch.equal(statistics.mu, others.mu)
    assert torch.equal(statistics.alpha, others.alpha)
    assert all(torch.equal(one[0].used * SHRINK, two[0].used) for one, two in zip(signals, small, strict=True))
    assert all(torch.equal(plain[name], shrunk[name]) for name in plain)


def test_an_absolute_eps_makes_the_scale_of_the_loss_matter(network, sequence, learn):
    """So it is not the default."""
    plain, _, _ = scaled(learn, network, sequence, 1.0, eps=1e-8)
    shrunk, _, _ = scaled(learn, network, sequence, SHRINK, eps=1e-8)
    change = max(((plain[name] - shrunk[name]).abs().max() / plain[name].abs().max()).item() for name in plain)
    assert change > 0.5


@pytest.mark.parametrize("options", [{}, {"project": "estimate"}], ids=str)
def test_a_batch_with_every_sample_twice_gives_the_same_gradients_and_coefficients(options, network, sequence, learn):
    inputs, targets, weights = sequence
    once, _, one = learn(COLA, network(), inputs, targets, weights, **options)
    twice, _, two = learn(COLA, network(), inputs.repeat(1, 2, 1), targets.repeat(1, 2, 1), weights, **options)
    torch.testing.assert_close(one.statistics[0].mu, two.statistics[0].mu, rtol=0, atol=1e-13)
    for name, gradient in once.items():
        torch.testing.assert_close(twice[name], gradient, rtol=1e-12, atol=1e-14)


def test_the_order_of_samples_does_not_matter(network, sequence, learn):
    inputs, targets, weights = sequence
    shuffled = torch.randperm(inputs.shape[1])
    one, _, _ = learn(COLA, network(), inputs, targets, weights)
    two, _, _ = learn(COLA, network(), inputs[:, shuffled], targets[:, shuffled], weights)
    for name, gradient in one.items():
        torch.testing.assert_close(two[name], gradient, rtol=1e-12, atol=1e-14)
