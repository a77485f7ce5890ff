"""What a reset drops and what it keeps, by name."""

import pytest
import torch

from pararnn_cola import COLA

# What rules know of the network besides its weights; a reset keeps it, reset(statistics=True) drops it.
STATISTICS = {
    "COLA": [f"memory.{layer}.{name}" for layer in range(2) for name in ("S", "Q", "N", "M", "alpha", "mu")],
    "UORO": ["memory.generator"],
    "EProp": [],
}


def test_every_tensor_that_is_kept_is_reset_or_is_a_statistic(rule, network, stream, feed):
    """Tensors that a learner keeps after a reset are those of a learner that has seen nothing, but for the statistics listed above."""
    data, learner = stream(13), rule(network(num_layers=2))
    fresh = rule(network(num_layers=2)).init(3)
    feed(learner, data)
    before = {name: tensor.clone() for name, tensor in learner.tensors().items()}
    learner.reset()
    after, new = learner.tensors(), fresh.tensors()
    known = STATISTICS.get(rule.name, [])
    for name, tensor in after.items():
        if name in known:
            assert torch.equal(tensor, before[name]), name
        else:
            assert name in new, f"{name} outlives a reset and is not listed as a statistic"
            assert torch.equal(tensor, new[name]), name


def test_after_a_reset_a_rule_without_statistics_answers_and_learns_as_if_new(rule, network, stream, feed):
    if STATISTICS.get(rule.name):
        return
    data, used = stream(9), rule(network(), update="accumulate")
    feed(used, stream(14, seed=8))
    used.flush()
    used.reset()
    used.network.load_state_dict(network().state_dict())
    used.network.zero_grad()
    new = rule(network(), update="accumulate")
    feed(used, data)
    feed(new, data)
    used.flush()
    new.flush()
    assert all(torch.equal(one.grad, two.grad) for one, two in zip(used.network.parameters(), new.network.parameters(), strict=True))


@pytest.mark.parametrize("start", [lambda learner: learner.reset(), lambda learner: learner.init(3)], ids=["reset", "init"])
def test_statistics_outlive_a_sequence_unless_asked_otherwise(start, network, stream, feed):
    learner = COLA(network(), lr=0.05)
    feed(learner, stream(10))
    mu = learner.statistics[0].mu.clone()
    assert mu.any()
    start(learner)
    assert torch.equal(learner.statistics[0].mu, mu)
    learner.reset(statistics=True)
    fresh = COLA(network())
    fresh.network.load_state_dict(learner.network.state_dict())
    one, two = feed(learner, stream(8), 0, 1)[0], feed(fresh, stream(8), 0, 1)[0]
    assert torch.equal(one.loss, two.loss)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(learner.network.parameters(), fresh.network.parameters(), strict=True))


def test_a_reset_keeps_gradients_that_were_not_applied(rule, network, stream, feed):
    learner = rule(network(), update="accumulate")
    feed(learner, stream(7))
    learner.flush()
    before = [p.grad.clone() for p in learner.network.parameters()]
    learner.reset()
    assert all(torch.equal(p.grad, grad) for p, grad in zip(learner.network.parameters(), before, strict=True))
    weights = learner.network.readout.weight.detach().clone()
    learner.apply()
    assert not torch.equal(learner.network.readout.weight, weights)


def test_applying_where_nothing_was_learned_does_nothing(rule, network, stream, snapshot, equal):
    learner = rule(network())
    learner.step(stream(1)[0][0])
    before = snapshot(learner)
    learner.apply()
    for what in ("weights", "gradients", "optimizer", "steps"):
        assert equal(snapshot(learner)[what], before[what])


def test_steps_after_init_with_another_batch_are_those_of_a_new_learner(rule, network, stream, feed):
    data = stream(9, batch=5)
    learner = rule(network(), update="accumulate")
    feed(learner, stream(7))
    learner.apply()
    learner.network.load_state_dict(network().state_dict())
    learner.init(5)
    learner.reset(statistics=True)
    outputs = [result.output for result in feed(learner, data)]
    expected = [result.output for result in feed(rule(network(), update="accumulate"), data)]
    assert all(torch.equal(one, two) for one, two in zip(outputs, expected, strict=True))
