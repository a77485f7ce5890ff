"""UORO: right in the mean, exact where its two cross terms cancel, and the same for the same seed."""

import pytest
import torch

from pararnn_cola import RTRL, UORO, Network
from pararnn_cola.learners.uoro import GROUP


def widen(tensor, batch):
    return tensor.expand(batch, *tensor.shape[1:]) if isinstance(tensor, torch.Tensor) else tensor


@pytest.mark.parametrize("kind", ["plain", "ragged"])
@pytest.mark.parametrize("layers", [1, 2])
def test_the_mean_over_signs_is_the_gradient_of_rtrl_within_five_standard_errors(network, stream, feed, layers, kind):
    steps = stream(6, batch=1, kind=kind)
    exact = network(layers)
    feed(RTRL(exact, update="accumulate"), steps)
    copies, means = 64, []
    for seed in range(40):
        net = network(layers)
        # Each row of a batch has signs of its own, so a batch of one sample many times over is a sample of estimates.
        wide = [type(step)(*(widen(value, copies) for value in (step.u, step.y, step.weight, step.mask, step.reset))) for step in steps]
        feed(UORO(net, seed=seed, update="accumulate"), wide)
        means.append(torch.cat([parameter.grad.flatten() for parameter in net.parameters()]))
    estimates = torch.stack(means)
    error = estimates.mean(0) - torch.cat([parameter.grad.flatten() for parameter in exact.parameters()])
    standard = estimates.std(0) / len(means) ** 0.5
    assert (error.abs() <= 5 * standard + 1e-12).all()
    # The test could not fail if the estimates were as wide as what they estimate.
    assert standard.max() < 0.2 * exact.layers[0].weight_ih.grad.abs().max()


def test_the_readout_has_its_exact_gradient(network, stream, feed):
    steps, one, other = stream(6, kind="ragged"), network(2), network(2)
    feed(UORO(one, update="accumulate"), steps)
    feed(RTRL(other, update="accumulate"), steps)
    for mine, exact in zip(one.readout.parameters(), other.readout.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, exact.grad, rtol=0, atol=1e-13)


def test_one_unit_is_exact_at_its_first_step_whatever_the_signs():
    # The square of a sign is one.
    u, y = torch.randn(3, 2), torch.randn(3, 1)
    for seed in range(5):
        one, other = Network.rnn(2, 1, 1, seed=1), Network.rnn(2, 1, 1, seed=1)
        UORO(one, seed=seed, update="accumulate").step(u, y)
        RTRL(other, update="accumulate").step(u, y)
        for mine, exact in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, exact.grad, rtol=0, atol=1e-14)


def test_one_unit_with_one_weight_is_exact_while_its_influence_changes_sign_against_its_input():
    # x[t] = -0.5 x[t-1] + w u[t] with u > 0: old and new influence have opposite signs, so the cross terms cancel, their norms being balanced.
    nets = [Network.rnn(1, 1, 1, activation="linear", seed=1) for _ in range(2)]
    for net in nets:
        with torch.no_grad():
            net.layers[0].weight_hh.fill_(-0.5)
        net.layers[0].weight_hh.requires_grad_(False)
        net.layers[0].bias.requires_grad_(False)
    learners = [UORO(nets[0], seed=4, update="accumulate"), RTRL(nets[1], update="accumulate")]
    for t in range(8):
        u, y = torch.tensor([[1.0], [1.3]]) + 0.1 * t, torch.tensor([[0.3], [-2.0]])
        for learner in learners:
            learner.step(u, y)
        torch.testing.assert_close(nets[0].layers[0].weight_ih.grad, nets[1].layers[0].weight_ih.grad, rtol=1e-13, atol=0)


def test_the_same_seed_gives_the_same_gradients_and_another_seed_others(network, stream, feed, gradients):
    made = []
    for seed in (0, 0, 1):
        net = network()
        feed(UORO(net, seed=seed, update="accumulate"), stream(4))
        made.append(gradients(net)["layers.0.weight_hh"])
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_batches_of_more_rows_than_a_group_keep_rows_apart(network, stream):
    # With a loss in one row only, no other row's signs can matter.
    batch, net = 2 * GROUP + 3, network()
    steps, learner = stream(5, batch=batch), UORO(net, update="accumulate")
    for step in steps:
        learner.step(step.u)
    a, b = learner.factors
    assert a.shape == (batch, 4)
    row = batch - 1
    weight = torch.zeros(batch)
    weight[row] = 1.0
    learner.step(steps[0].u, steps[0].y, weight)
    a, b = learner.factors
    h = learner.states[0][0][row]
    error = 2 / 2 * (h @ net.readout.weight.T + net.readout.bias - steps[0].y[row]) / batch
    expected = ((error @ net.readout.weight) @ a[row]) * b[row]
    found = torch.cat([parameter.grad.flatten() for parameter in net.layers.parameters()])
    torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=1e-15)


def test_rows_without_a_step_keep_their_factors(network, stream, feed):
    learner = feed(UORO(network()), stream(3))
    before = [factor.clone() for factor in learner.factors]
    step = stream(1, seed=8)[0]
    learner.step(step.u, mask=torch.tensor([True, False, True]))
    for old, new in zip(before, learner.factors, strict=True):
        assert torch.equal(old[1], new[1])
        assert not torch.equal(old[0], new[0])
