"""A stream cut into pieces, saved, loaded, copied or pickled goes on to the bit."""

import copy
import pickle
import re

import pytest
import torch

from pararnn_cola import COLA, TBPTT1, StreamError

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.003),
}
SETTINGS = [("sgd", "step", None), ("adam", "step", 0.5), ("sgd", "accumulate", 0.5), ("adam", "accumulate", None)]


def made(rule, network, setting):
    optimizer, update, clip = setting
    return rule(network, optimizer=OPTIMIZERS[optimizer](network.parameters()), update=update, clip=clip)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: "-".join(map(str, s)))
@pytest.mark.parametrize("cuts", [[13], [1, 2, 3, 4, 5, 6, 7, 40]], ids=["once", "often"])
def test_a_saved_learner_goes_on_to_the_bit_in_a_new_process_s_objects(rule, setting, cuts, network, stream, feed, equal, through_a_file):
    data = stream(60)
    whole = made(rule, network(), setting)
    expected = feed(whole, data)
    learner, results = made(rule, network(), setting), []
    for start, stop in zip([0, *cuts], [*cuts, 60], strict=True):
        results += feed(learner, data, start, stop)
        saved = through_a_file(learner.state_dict())
        learner = made(rule, network(seed=99), setting)
        learner.load_state_dict(saved)
    assert equal([result.output for result in results], [result.output for result in expected])
    assert equal(learner.state_dict(), whole.state_dict())


@pytest.mark.parametrize("kind", [COLA, TBPTT1])
def test_pieces_of_a_long_stream_give_the_parameters_of_one_go(kind, network, stream, feed, equal, through_a_file):
    data, setting = stream(1200, dtype=torch.float32), ("sgd", "step", None)
    whole = made(kind, network(dtype=torch.float32), setting)
    feed(whole, data)
    learner, start = made(kind, network(dtype=torch.float32), setting), 0
    for length in [*[1] * 7, 93, 500, 600]:
        feed(learner, data, start, start + length)
        saved, start = through_a_file(learner.state_dict()), start + length
        learner = made(kind, network(dtype=torch.float32), setting)
        learner.load_state_dict(saved)
    assert start == 1200
    assert equal(learner.state_dict(), whole.state_dict())


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: "-".join(map(str, s)))
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda learner: pickle.loads(pickle.dumps(learner))], ids=["deepcopy", "pickle"])
def test_a_copy_goes_on_to_the_bit_and_leaves_the_original_alone(rule, setting, copied, network, stream, feed, snapshot, equal):
    data = stream(40)
    learner = made(rule, network(), setting)
    feed(learner, data, 0, 13)
    twin = copied(learner)
    assert twin.network is not learner.network
    before = snapshot(learner)
    feed(twin, data, 13)
    assert equal(snapshot(learner), before)
    feed(learner, data, 13)
    assert equal(learner.state_dict(), twin.state_dict())


def test_resuming_after_masked_and_targetless_steps_goes_on_to_the_bit(rule, network, stream, equal, through_a_file):
    inputs, targets = stream(24)
    masks = torch.rand(24, inputs.shape[1]) > 0.3

    def run(learner, start, stop):
        for time in range(start, stop):
            learner.step(inputs[time], None if time % 4 == 1 else targets[time], mask=masks[time] if time % 3 else None)
            if time % 7 == 6:
                learner.reset(rows=masks[time])

    whole, learner = rule(network(), lr=0.05), rule(network(), lr=0.05)
    run(whole, 0, 24)
    for start, stop in ((0, 9), (9, 14), (14, 24)):
        run(learner, start, stop)
        saved = through_a_file(learner.state_dict())
        learner = rule(network(seed=5), lr=0.05)
        learner.load_state_dict(saved)
    assert equal(learner.state_dict(), whole.state_dict())


def test_a_state_dict_does_not_change_as_the_learner_goes_on(rule, network, stream, feed, equal):
    data = stream(12)
    learner = rule(network(), lr=0.05)
    feed(learner, data, 0, 6)
    saved = learner.state_dict()
    kept = copy.deepcopy(saved)
    feed(learner, data, 6)
    assert equal(saved, kept)
    learner.load_state_dict(saved)
    feed(learner, data, 6)
    assert equal(saved, kept)


def test_a_learner_that_has_seen_nothing_can_be_saved(rule, network, stream, feed, equal):
    fresh, data = rule(network()), stream(5)
    other = rule(network(seed=8))
    other.load_state_dict(fresh.state_dict())
    feed(fresh, data)
    feed(other, data)
    assert equal(fresh.state_dict(), other.state_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda make: TBPTT1(make()), "the checkpoint is of 'COLA', this learner's rule is 'TBPTT1'"),
        (lambda make: COLA(net := make(), optimizer=torch.optim.Adam(net.parameters())), "'SGD', this learner's optimizer_kind is 'Adam'"),
        (lambda make: COLA(make(num_layers=2)), "layers.1.weight_hh is absent in the checkpoint"),
        (lambda make: COLA(make(dtype=torch.float32)), "is (5, 5) in torch.float64 in the checkpoint and (5, 5) in torch.float32 in this network"),
    ],
    ids=["rule", "optimizer", "layers", "dtype"],
)
def test_a_foreign_checkpoint_is_refused_and_changes_nothing(change, message, network, stream, feed, snapshot, equal):
    learner = COLA(network())
    feed(learner, stream(4))
    saved = learner.state_dict()
    other = change(network)
    before = snapshot(other)
    with pytest.raises(StreamError, match=re.escape(message)):
        other.load_state_dict(saved)
    assert equal(snapshot(other), before)


def test_an_optimizer_over_other_parameters_is_refused_and_changes_nothing(network, stream, feed, snapshot, equal):
    learner = COLA(network())
    feed(learner, stream(4))
    net = network(seed=2)
    other = COLA(net, optimizer=torch.optim.SGD(net.readout.parameters(), lr=0.1))
    before = snapshot(other)
    with pytest.raises(StreamError, match="moved other parameters"):
        other.load_state_dict(learner.state_dict())
    assert equal(snapshot(other), before)
