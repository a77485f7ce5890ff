"""Checkpoints of other settings, and damaged ones: refused before anything changes, with what is wrong."""

import re

import pytest
import torch

from pararnn_cola import BPTT, COLA, RTRL, TBPTT, TBPTT1, UORO, EProp, LeakyLayer, Network, Readout, RNNLayer, SnAp1, StreamError


def leaky(leak):
    return Network(LeakyLayer(2, 5, leak=leak, generator=torch.Generator().manual_seed(0)), Readout(5, 2)).double()


def absolute(output, target):
    return (output - target).abs().mean(-1)


OTHERS = {
    "margin": (lambda n: COLA(n()), lambda n: COLA(n(), margin=0.5), "margin=0.1 in the checkpoint and 0.5 here"),
    "rho": (lambda n: COLA(n(), rho_mu=0.9), lambda n: COLA(n()), "rho_mu=0.9 in the checkpoint and 0.99 here"),
    "project": (lambda n: COLA(n()), lambda n: COLA(n(), project="estimate"), "project='use' in the checkpoint and 'estimate' here"),
    "gain": (lambda n: TBPTT1(n(), hidden_gain=10), lambda n: TBPTT1(n()), "hidden_gain=10 in the checkpoint and 1.0 here"),
    "window": (lambda n: TBPTT(n(), 8), lambda n: TBPTT(n(), 4), "k1=8 in the checkpoint and 4 here; k2=8 in the checkpoint and 4 here"),
    "feedback": (lambda n: EProp(n()), lambda n: EProp(n(), feedback="random"), "feedback='symmetric' in the checkpoint and 'random' here"),
    "update": (lambda n: COLA(n()), lambda n: COLA(n(), update="accumulate"), "update='step' in the checkpoint and 'accumulate' here"),
    "clip": (lambda n: COLA(n()), lambda n: COLA(n(), clip=1.0), "clip=None in the checkpoint and 1.0 here"),
    "loss": (lambda n: COLA(n()), lambda n: COLA(n(), loss=absolute), "loss='mse' in the checkpoint and 'custom absolute' here"),
    "activation": (lambda n: COLA(n()), lambda n: COLA(n(activation="relu")), "layers.0.activation='tanh' in the checkpoint and 'relu' here"),
    "leak": (lambda n: COLA(leaky(0.9)), lambda n: COLA(leaky(0.5)), "layers.0.leak=0.9 in the checkpoint and 0.5 here"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_checkpoint_of_other_settings_is_refused_and_changes_nothing(case, network, stream, feed, snapshot, equal, through_a_file):
    first, second, message = OTHERS[case]
    learner, other = first(network), second(network)
    feed(learner, stream(5))
    feed(other, stream(3))
    before = snapshot(other)
    with pytest.raises(StreamError, match=re.escape(message)):
        other.load_state_dict(through_a_file(learner.state_dict()))
    assert equal(snapshot(other), before)


SAME = {
    "number": (lambda n: TBPTT1(n(), hidden_gain=10), lambda n: TBPTT1(n(), hidden_gain=10.0)),
    "tensor": (lambda n: TBPTT1(n(), hidden_gain=torch.tensor(2.0)), lambda n: TBPTT1(n(), hidden_gain=2.0)),
    "seed": (lambda n: UORO(n(), seed=1), lambda n: UORO(n(), seed=2)),
    "feedback": (lambda n: EProp(n(), feedback="random", seed=1), lambda n: EProp(n(), feedback="random", seed=2)),
    "memory": (lambda n: RTRL(n()), lambda n: RTRL(n(), memory_limit=10**7)),
    "function": (lambda n: COLA(n(), loss=absolute), lambda n: COLA(n(), loss=absolute)),
}


@pytest.mark.parametrize("case", SAME)
def test_settings_that_make_no_other_stream_are_no_obstacle(case, network, stream, feed, equal, through_a_file):
    learner, other = (make(network) for make in SAME[case])
    feed(learner, stream(5))
    other.load_state_dict(through_a_file(learner.state_dict()))
    feed(learner, data := stream(5, seed=9))
    feed(other, data)
    assert equal(learner.tensors(), other.tensors())


def test_the_rate_is_that_of_the_checkpoint(network, stream, feed):
    learner, other = COLA(network(), lr=0.1), COLA(network(), lr=0.001)
    feed(learner, stream(3))
    other.load_state_dict(learner.state_dict())
    assert other.optimizer.param_groups[0]["lr"] == 0.1


def changed(path, make):
    """A function that puts `make(value)` in the place of a value deep inside; DELETE drops it."""

    def apply(saved):
        inner = saved
        for key in path[:-1]:
            inner = inner[key]
        if make is None:
            del inner[path[-1]]
        else:
            inner[path[-1]] = make(inner.get(path[-1]) if isinstance(inner, dict) else inner[path[-1]])

    return apply


def wider(value):
    return torch.cat((value, value), -1)


EVERYWHERE = {
    "no network": changed(["network"], None),
    "no settings": changed(["settings"], lambda _: 3),
    "steps": changed(["steps"], lambda _: "a"),
    "negative steps": changed(["steps"], lambda _: -1),
    "state": changed(["tensors", "state.0.0"], wider),
    "half of the batch": changed(["tensors", "state.1.0"], lambda value: value[:2]),
    "state dtype": changed(["tensors", "state.0.0"], torch.Tensor.float),
    "no state": changed(["tensors", "state.1.0"], None),
    "one state more": changed(["tensors", "state.2.0"], lambda _: torch.zeros(3, 5, dtype=torch.float64)),
    "memory": changed(["tensors", "memory.foo"], lambda _: torch.zeros(2)),
    "no tensor": changed(["tensors", "memory.foo"], lambda _: 3),
    "momentum": changed(["optimizer", "state", 0, "momentum_buffer"], wider),
    "no rate": changed(["optimizer", "param_groups", 0, "lr"], None),
    "no groups": changed(["optimizer", "param_groups"], None),
    "gradient": changed(["gradients"], lambda _: {"readout.bias": torch.zeros(99, dtype=torch.float64)}),
    "weights": changed(["network", "readout.bias"], wider),
}


def momentum(rule, network):
    net = network(num_layers=2)
    return rule(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), clip=1.0)


@pytest.mark.parametrize("fault", EVERYWHERE)
def test_a_damaged_checkpoint_is_refused_and_changes_nothing(rule, fault, network, stream, feed, snapshot, equal):
    learner, other = momentum(rule, network), momentum(rule, network)
    feed(learner, stream(11))
    feed(other, data := stream(14, batch=4, seed=6), 0, 11)
    saved, before = learner.state_dict(), snapshot(other)
    EVERYWHERE[fault](saved)
    with pytest.raises(StreamError):
        other.load_state_dict(saved)
    assert equal(snapshot(other), before)
    twin = momentum(rule, network)
    feed(twin, data, 0, 11)
    feed(other, data, 11)
    feed(twin, data, 11)
    assert equal(other.state_dict(), twin.state_dict())


MEMORIES = {
    "mu": (COLA, "memory.0.mu", wider),
    "no mu": (COLA, "memory.0.mu", None),
    "valid": (COLA, "memory.0.valid", lambda _: torch.tensor(3)),
    "previous": (COLA, "memory.0.previous.1", lambda value: value[:1]),
    "trace": (SnAp1, "memory.0.trace", lambda value: value[..., 1:]),
    "slope": (SnAp1, "memory.0.slope", wider),
    "influence": (RTRL, "memory.influence", lambda value: value[..., 1:]),
    "columns": (RTRL, "memory.columns", lambda value: value + 90),
    "columns twice": (RTRL, "memory.columns", lambda value: value * 0),
    "factor": (UORO, "memory.weight_factor", lambda value: value[..., 1:]),
    "generator": (UORO, "memory.generator", lambda value: value[1:]),
    "a generator of zeros": (UORO, "memory.generator", torch.zeros_like),
    "owed": (BPTT, "memory.owed", lambda value: value + 90),
    "a step": (BPTT, "memory.1.inputs", None),
    "inputs": (BPTT, "memory.1.inputs", wider),
    "target": (BPTT, "memory.1.target", lambda value: value[:, :1]),
    "before": (BPTT, "memory.0.before.0.0", wider),
    "live": (BPTT, "memory.1.live", lambda _: torch.ones(2, dtype=torch.bool)),
}


@pytest.mark.parametrize("fault", MEMORIES)
def test_what_a_rule_keeps_between_steps_is_looked_at_before_anything_changes(fault, network, stream, feed, snapshot, equal):
    kind, name, make = MEMORIES[fault]
    learner, other = kind(network()), kind(network(seed=2))
    feed(learner, stream(5))
    feed(other, stream(4))
    saved, before = learner.state_dict(), snapshot(other)
    assert name in saved["tensors"]
    changed(["tensors", name], make)(saved)
    with pytest.raises(StreamError):
        other.load_state_dict(saved)
    assert equal(snapshot(other), before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_numbers_of_an_optimizer_keep_their_precision(dtype, network, stream, feed, equal, through_a_file):
    def made(seed):
        net = network(seed=seed, dtype=dtype)
        return TBPTT1(net, optimizer=torch.optim.NAdam(net.parameters(), lr=0.01))

    learner, other, data = made(1), made(2), stream(12, dtype=dtype)
    feed(learner, data, 0, 6)
    other.load_state_dict(through_a_file(learner.state_dict()))
    feed(learner, data, 6)
    feed(other, data, 6)
    assert equal(learner.state_dict(), other.state_dict())


class Counting(RNNLayer):
    """A layer with an attribute that says how it was made, and one that does not."""

    def __init__(self, *sizes, power=1.0, **options):
        super().__init__(*sizes, **options)
        self.power, self.calls = power, 0

    def forward(self, u, state):
        self.calls += 1
        return super().forward(self.power * u, state)


def counting(power):
    return TBPTT1(Network(Counting(2, 5, power=power), Readout(5, 2)).double())


def test_a_layer_of_ones_own_is_told_by_what_it_was_made_with_and_not_by_what_it_counts(stream, feed, equal):
    learner, other = counting(2.0), counting(2.0)
    feed(learner, stream(5))
    other.load_state_dict(learner.state_dict())
    assert equal(learner.tensors(), other.tensors())
    with pytest.raises(StreamError, match=re.escape("layers.0.power=2.0 in the checkpoint and 1.0 here")):
        counting(1.0).load_state_dict(learner.state_dict())
