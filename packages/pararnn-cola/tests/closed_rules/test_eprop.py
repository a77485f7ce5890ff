from __future__ import annotations

import copy

import pytest
import torch
from torch.testing import assert_close

from pararnn.errors import ConfigError
from pararnn_cola import TBPTT1, EProp

EXACT = {"rtol": 1e-12, "atol": 1e-13}
KINDS = pytest.mark.parametrize("kind", ["rnn", "leaky", "leaks", "spiking"])
STACKS = pytest.mark.parametrize("kinds", [("rnn", "rnn"), ("leaky", "rnn"), ("leaks", "spiking", "leaky")], ids="-".join)


@KINDS
@pytest.mark.parametrize("batch", [1, 4], ids="B{}".format)
def test_it_equals_backpropagation_in_which_only_the_leak_remembers(kind, batch, network, stream, cut_backpropagation, streamed):
    net, data = network(kind), stream(batch)
    assert_close(streamed(EProp, net, *data), cut_backpropagation(net, *data, torch.zeros_like), **EXACT)


@STACKS
def test_in_a_stack_traces_are_those_of_each_layer_and_the_loss_goes_down_within_the_step(kinds, network, stream, cut_backpropagation, streamed):
    net, data = network(*kinds), stream()
    assert_close(streamed(EProp, net, *data), cut_backpropagation(net, *data, torch.zeros_like), **EXACT)


@pytest.mark.parametrize("kinds", [("rnn",), ("rnn", "rnn")], ids="-".join)
def test_without_a_leak_it_is_tbptt1(kinds, network, stream, streamed):
    net, data = network(*kinds), stream()
    assert_close(streamed(EProp, copy.deepcopy(net), *data), streamed(TBPTT1, net, *data), **EXACT)


@pytest.mark.parametrize("kind", ["leaky", "leaks", "spiking"])
def test_it_is_exact_where_units_do_not_talk_to_each_other(kind, network, stream, backpropagate, streamed):
    net, data = network(kind), stream()
    with torch.no_grad():
        net.layers[0].weight_hh.zero_()
    expected = backpropagate(net, *data)
    assert_close(streamed(EProp, net, *data), expected, **EXACT)


@KINDS
def test_random_feedback_equals_symmetric_feedback_through_a_readout_of_those_weights(kind, network, stream, streamed):
    net, data = network(kind), stream()
    learner = EProp(net, feedback="random", seed=5, update="accumulate")
    (matrix,) = learner.matrices
    states = net.zero_state(4)
    trace, expected = torch.zeros(4, 6, 10, dtype=torch.float64), torch.zeros(6, 10, dtype=torch.float64)
    for u, y, weight in zip(*data, strict=True):
        learner.step(u, y, weight)
        (layer,) = net.recurrent
        with torch.no_grad():
            (state,), moment = [layer.observe(u, states[0])[0]], layer.observe(u, states[0])[1]
            leak = torch.as_tensor(moment.leak, dtype=torch.float64).expand(4, 6)
            seen = torch.cat([moment.previous, u, torch.ones(4, 1, dtype=torch.float64)], -1)
            states = (state,)
            for sample in range(4):
                error = weight[sample] * (net.readout(state[0])[sample] - y[sample]) * 2 / 2
                for unit in range(6):
                    trace[sample, unit] = leak[sample, unit] * trace[sample, unit] + seen[sample]
                    learning_signal = (matrix[:, unit] * error).sum()
                    expected[unit] += learning_signal * moment.slope[sample, unit] * trace[sample, unit] / 4
    layer = net.layers[0]
    found = torch.cat([layer.weight_hh.grad, layer.weight_ih.grad, layer.bias.grad.unsqueeze(-1)], -1)
    assert_close(found, expected, **EXACT)


def test_random_feedback_reaches_every_layer_straight_from_the_output(network, stream, streamed):
    data = stream()
    net, changed = network("leaky", "rnn"), network("leaky", "rnn")
    with torch.no_grad():
        changed.layers[1].weight_ih.mul_(1.0 + 1e-9)
    expected = streamed(EProp, net, *data, feedback="random")
    blocked = network("leaky", "rnn")
    with torch.no_grad():
        # Whatever the layer above answers, the lowest layer hears of the error only.
        blocked.layers[1].weight_hh.zero_()
        blocked.layers[1].weight_ih.zero_()
        blocked.layers[1].bias.zero_()
        blocked.readout.weight.zero_()
    found = streamed(EProp, blocked, *data, feedback="random")
    assert bool((found["layers.0.weight_ih"] != 0).all())
    assert_close(streamed(EProp, changed, *data, feedback="random")["layers.0.weight_ih"], expected["layers.0.weight_ih"], rtol=1e-6, atol=1e-9)


def test_a_seed_draws_the_same_feedback_in_every_dtype_and_another_seed_draws_another(network):
    whole = EProp(network("rnn", "leaky"), feedback="random", seed=1).matrices
    half = EProp(network("rnn", "leaky").float(), feedback="random", seed=1).matrices
    other = EProp(network("rnn", "leaky"), feedback="random", seed=2).matrices
    assert [matrix.shape for matrix in whole] == [(2, 6), (2, 6)]
    assert_close([matrix.double() for matrix in half], whole, rtol=0, atol=0)
    assert not torch.equal(whole[0], other[0])
    assert not torch.equal(whole[0], whole[1])


def test_the_feedback_is_part_of_a_checkpoint(network, stream):
    inputs, targets, weights = stream()
    learner = EProp(network("leaks", "rnn"), feedback="random", seed=1, lr=0.1)
    learner.step(inputs[0], targets[0], weights[0])
    resumed = EProp(network("leaks", "rnn"), feedback="random", seed=2, lr=0.1)
    resumed.load_state_dict(learner.state_dict())
    for u, y, weight in zip(inputs, targets, weights, strict=True):
        learner.step(u, y, weight)
        resumed.step(u, y, weight)
    assert_close(dict(resumed.network.named_parameters()), dict(learner.network.named_parameters()), rtol=0, atol=0)


def test_its_form_shows_in_its_name_and_others_are_refused(network):
    assert "feedback='random'" in repr(EProp(network("leaky"), feedback="random"))
    with pytest.raises(ConfigError, match='feedback=\'fixed\' is neither "symmetric" nor "random"'):
        EProp(network("leaky"), feedback="fixed")
