"""Saved in the middle of whatever is open, a stream goes on bit for bit."""

import copy
import io
import pickle

import pytest
import torch

from pararnn_cola import BPTT, RTRL, TBPTT, UORO

RULES = {
    "BPTT": lambda network, **options: BPTT(network, **options),
    "TBPTT-live": lambda network, **options: TBPTT(network, 4, **options),
    "TBPTT-rerun": lambda network, **options: TBPTT(network, 2, 5, **options),
    "RTRL": lambda network, **options: RTRL(network, **options),
    "UORO": lambda network, **options: UORO(network, **options),
}


@pytest.fixture(params=RULES.values(), ids=RULES)
def rule(request):
    def make(network, **options):
        return request.param(network, optimizer=torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9), **options)

    return make


def end(learner):
    """What the stream made of the weights, once nothing is owed."""
    learner.apply()
    return [parameter.detach().clone() for parameter in learner.network.parameters()]


def through_a_file(state):
    """What `state` is after it was saved and read again by a reader that trusts no code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("at", [0, 1, 2, 3, 5, 8, 10], ids="at{}".format)
def test_a_checkpoint_goes_on_bit_for_bit_in_a_fresh_learner(rule, network, stream, feed, at):
    steps = stream(11, kind="ragged")
    whole = end(feed(rule(network(2)), steps))
    saved = through_a_file(feed(rule(network(2)), steps[:at]).state_dict())
    other = rule(network(2, seed=40))
    other.load_state_dict(saved)
    for mine, expected in zip(end(feed(other, steps[at:])), whole, strict=True):
        assert torch.equal(mine, expected)


def test_a_checkpoint_between_a_reset_of_rows_and_the_next_step_keeps_the_reset(rule, network, stream, feed):
    steps, rows = stream(9), torch.tensor([True, False, True])
    straight, first, second = (rule(network()) for _ in range(3))
    for learner in (straight, first):
        feed(learner, steps[:5])
        learner.reset(rows)
    second.load_state_dict(first.state_dict())
    for mine, expected in zip(end(feed(second, steps[5:])), end(feed(straight, steps[5:])), strict=True):
        assert torch.equal(mine, expected)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda learner: pickle.loads(pickle.dumps(learner))], ids=["deepcopy", "pickle"])
def test_a_copy_in_the_middle_of_a_window_goes_on_bit_for_bit_and_apart(rule, network, stream, feed, copied):
    steps = stream(9, kind="ragged")
    learner = feed(rule(network()), steps[:6])
    twin = copied(learner)
    first = end(feed(learner, steps[6:]))
    for mine, expected in zip(end(feed(twin, steps[6:])), first, strict=True):
        assert torch.equal(mine, expected)


def test_loading_back_into_the_same_learner_undoes_what_came_after(rule, network, stream, feed):
    steps = stream(9, kind="ragged")
    learner = feed(rule(network()), steps[:6])
    saved = learner.state_dict()
    first = end(feed(learner, steps[6:]))
    learner.load_state_dict(saved)
    for mine, expected in zip(end(feed(learner, steps[6:])), first, strict=True):
        assert torch.equal(mine, expected)


@pytest.mark.parametrize(("name", "update"), [*((name, "accumulate") for name in RULES), *((name, "step") for name in RULES if name != "BPTT")])
def test_saving_at_every_step_changes_nothing(name, network, stream, feed, update):
    def make(net):
        return RULES[name](net, update=update, lr=0.05)

    steps = stream(11, kind="ragged")
    whole = end(feed(make(network()), steps))
    learner = make(network())
    for step in steps:
        feed(learner, [step])
        saved, learner = learner.state_dict(), make(network(seed=7))
        learner.load_state_dict(saved)
    for mine, expected in zip(end(learner), whole, strict=True):
        assert torch.equal(mine, expected)


def test_a_gradient_that_was_applied_is_not_applied_again_after_a_resume_in_an_open_window(network, stream, feed):
    steps = stream(6)
    straight = feed(TBPTT(network(), 4, lr=0.1), steps)
    second = TBPTT(network(seed=9), 4, lr=0.1)
    second.load_state_dict(feed(TBPTT(network(), 4, lr=0.1), steps[:5]).state_dict())
    feed(second, steps[5:])
    for mine, expected in zip(end(second), end(straight), strict=True):
        assert torch.equal(mine, expected)
