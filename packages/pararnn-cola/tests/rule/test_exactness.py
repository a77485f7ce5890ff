"""Gradients that are exact, against autograd and against the recursion of backpropagation written out."""

import pytest
import torch
from torch.nn import functional as F

from pararnn_cola import COLA, RTRL, TBPTT1
from pararnn_cola.learners.statistics import ClosureStatistics

CLOSE = {"rtol": 1e-12, "atol": 1e-15}


def same(found, expected):
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, msg=lambda text, name=name: f"{name}: {text}", **CLOSE)


def exact_signals(network, inputs, targets, weights):
    """`delta[t] = d[t] + p[t] * (W^T delta[t+1])`, walked from the end; and the states before each step."""
    layer, readout = network.recurrent[0], network.readout
    h, before, slopes, instantaneous = torch.zeros(inputs.shape[1], layer.state_size), [], [], []
    with torch.no_grad():
        for u, y, w in zip(inputs, targets, weights, strict=True):
            before.append(h)
            h = torch.tanh(h @ layer.weight_hh.T + u @ layer.weight_ih.T + layer.bias)
            error = w * 2 * (h @ readout.weight.T + readout.bias - y) / y.shape[-1]
            slopes.append(1 - h**2)
            instantaneous.append(slopes[-1] * (error @ readout.weight))
        delta, deltas = torch.zeros_like(h), []
        for d, p in zip(reversed(instantaneous), reversed(slopes), strict=True):
            delta = d + p * (delta @ layer.weight_hh)
            deltas.insert(0, delta)
    return torch.stack(deltas), torch.stack(before), torch.stack(instantaneous)


@pytest.mark.parametrize("batch", [1, 3, 7], ids="B{}".format)
@pytest.mark.parametrize("activation", ["tanh", "relu", "sigmoid", "softplus", "linear"])
def test_tbptt1_equals_autograd_with_the_past_cut_at_every_step(batch, activation, network, sequence, learn, backpropagate):
    sequence = (sequence[0][:, :batch], sequence[1][:, :batch], sequence[2])
    gradients, _, _ = learn(TBPTT1, network(activation=activation), *sequence)
    same(gradients, backpropagate(network(activation=activation), *sequence, cut=True))


def test_tbptt1_of_two_layers_equals_autograd_with_the_past_cut_at_every_step(network, sequence, learn, backpropagate):
    gradients, _, _ = learn(TBPTT1, network(num_layers=2), *sequence)
    same(gradients, backpropagate(network(num_layers=2), *sequence, cut=True))


def test_a_hidden_gain_multiplies_recurrent_gradients_and_leaves_the_readout_exact(network, sequence, learn):
    plain, _, _ = learn(TBPTT1, network(), *sequence)
    scaled, _, _ = learn(TBPTT1, network(), *sequence, hidden_gain=10.0)
    same(scaled, {name: gradient * (1.0 if name.startswith("readout") else 10.0) for name, gradient in plain.items()})


def test_cola_with_mu_frozen_at_zero_is_tbptt1_to_the_bit(network, sequence, learn, monkeypatch):
    monkeypatch.setattr(ClosureStatistics, "observe_mu", lambda *_: None)
    cola, _, _ = learn(COLA, network(), *sequence)
    tbptt1, _, _ = learn(TBPTT1, network(), *sequence)
    assert all(torch.equal(cola[name], tbptt1[name]) for name in tbptt1)


@pytest.mark.parametrize("rule", [COLA, TBPTT1])
@pytest.mark.parametrize("layers", [1, 3], ids="{}-layers".format)
def test_readout_gradients_equal_those_of_full_backpropagation(rule, layers, network, sequence, learn, backpropagate):
    gradients, _, _ = learn(rule, network(num_layers=layers), *sequence)
    expected = backpropagate(network(num_layers=layers), *sequence)
    same(gradients, {name: gradient for name, gradient in expected.items() if name.startswith("readout")})


@pytest.mark.parametrize("rule", [COLA, TBPTT1])
def test_readout_gradients_equal_autograd_of_the_instantaneous_loss(rule, network, sequence):
    inputs, targets, _ = sequence
    net = network()
    learner = rule(net, update="accumulate")
    for u, y in zip(inputs, targets, strict=True):
        net.zero_grad()
        h = learner.step(u, y) and learner.states[0][0]
        loss = F.mse_loss(net.readout(h), y)
        expected = torch.autograd.grad(loss, list(net.readout.parameters()))
        torch.testing.assert_close([p.grad for p in net.readout.parameters()], list(expected), **CLOSE)


def test_the_exact_recursion_gives_the_gradient_of_backpropagation_through_time(network, sequence, backpropagate):
    delta, before, _ = exact_signals(network(), *sequence)
    expected, batch = backpropagate(network(), *sequence), before.shape[1]
    torch.testing.assert_close(torch.einsum("tbi,tbj->ij", delta, before) / batch, expected["layers.0.weight_hh"], **CLOSE)
    torch.testing.assert_close(torch.einsum("tbi,tbj->ij", delta, sequence[0]) / batch, expected["layers.0.weight_ih"], **CLOSE)
    torch.testing.assert_close(delta.sum((0, 1)) / batch, expected["layers.0.bias"], **CLOSE)


def test_rtrl_equals_backpropagation_through_time_with_frozen_weights(network, sequence, learn, backpropagate):
    gradients, _, _ = learn(RTRL, network(), *sequence)
    expected = backpropagate(network(), *sequence)
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("rule", [COLA, TBPTT1])
def test_the_instantaneous_signal_is_that_of_the_recursion(rule, network, sequence, learn):
    _, signals, _ = learn(rule, network(), *sequence)
    _, _, expected = exact_signals(network(), *sequence)
    torch.testing.assert_close(torch.stack([step[0].instantaneous for step in signals]), expected, **CLOSE)


def test_signals_of_a_stack_are_the_gradient_within_the_step_by_each_preactivation(network, sequence, learn):
    inputs, targets, weights = sequence
    _, signals, _ = learn(COLA, network(num_layers=3), *sequence)
    net = network(num_layers=3)
    states = net.zero_state(inputs.shape[1])
    for u, y, w, found in zip(inputs, targets, weights, signals, strict=True):
        states = tuple(tuple(part.detach() for part in state) for state in states)
        seen, following, preactivations = u, [], []
        for layer, state in zip(net.recurrent, states, strict=True):
            state, x = layer(seen, state)
            following.append(state)
            preactivations.append(x)
            seen = state[0]
        loss = w * (net.readout(seen) - y).square().mean(-1).sum()
        expected = torch.autograd.grad(loss, preactivations)
        for layer, (signal, truth) in enumerate(zip(found, expected, strict=True)):
            torch.testing.assert_close(signal.instantaneous, truth, msg=lambda text, layer=layer: f"layer {layer}: {text}", **CLOSE)
        states = tuple(following)


def test_gradients_are_those_that_the_signals_mean(network, sequence, learn):
    gradients, signals, _ = learn(COLA, network(), *sequence)
    _, before, _ = exact_signals(network(), *sequence)
    used = torch.stack([step[0].used for step in signals])
    torch.testing.assert_close(torch.einsum("tbi,tbj->ij", used, before) / used.shape[1], gradients["layers.0.weight_hh"], **CLOSE)


def test_with_a_loss_at_the_last_step_only_cola_is_tbptt1_to_the_bit(network, sequence, learn):
    inputs, targets, weights = sequence
    weights = torch.zeros_like(weights).index_fill(0, torch.tensor([len(weights) - 1]), 1.0)
    cola, signals, learner = learn(COLA, network(), inputs, targets, weights)
    tbptt1, _, _ = learn(TBPTT1, network(), inputs, targets, weights)
    assert all(torch.equal(cola[name], tbptt1[name]) for name in tbptt1)
    assert all(step is None for step in signals[:-1])
    assert signals[-1][0].used.abs().min() > 0
    assert not learner.statistics[0].alpha.any()
    assert not learner.statistics[0].mu.any()


def test_with_a_loss_at_the_last_step_only_a_tensor_of_weights_says_the_same_as_numbers(network, sequence, learn):
    inputs, targets, weights = sequence
    weights = torch.zeros_like(weights).index_fill(0, torch.tensor([len(weights) - 1]), 1.0)
    numbers, _, _ = learn(COLA, network(), inputs, targets, weights)
    learner = COLA(net := network(), update="accumulate")
    used = [learner.step(u, y, w.expand(len(u)), signals=True).signals[0].used for u, y, w in zip(inputs, targets, weights, strict=True)]
    assert all(torch.equal(p.grad, numbers[name]) for name, p in net.named_parameters())
    assert not any(step.any() for step in used[:-1])
    assert not learner.statistics[0].mu.any()
