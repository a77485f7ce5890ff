"""Exact signals, against the recursion by hand and against autograd of the whole loss."""

import math

import pytest
import torch

from pararnn.errors import InputError, ShapeError
from pararnn_cola import BPTT, RTRL, CellLayer, CoverageError, LeakyLayer, Network, Readout, RNNLayer, SpikingLayer, exact_signals, stack_networks
from pararnn_cola.tasks.base import Batch

WIDE = torch.float64


def signals_of(network, batch, **options):
    return exact_signals(network, batch.inputs, batch.targets, batch.weights, batch.mask, **options)


def autograd_of(network, batch):
    """Gradients of the weighted squared error by autograd, with masked rows standing still."""
    states, total = network.zero_state(batch.size), 0.0
    for time in range(batch.length):
        here = torch.ones(batch.size, dtype=torch.bool) if batch.mask is None else batch.mask[:, time]
        u = torch.where(here.unsqueeze(-1), batch.inputs[:, time], 0.0)
        output, following = network.advance(u, states)
        states = tuple(
            tuple(torch.where(here.unsqueeze(-1), new, old) for new, old in zip(after, before, strict=True))
            for after, before in zip(following, states, strict=True)
        )
        target = torch.where(here.unsqueeze(-1), batch.targets[:, time], 0.0)
        total = total + (batch.weights[time] * here * (output - target).square().mean(-1)).sum() / batch.size
    named = dict(network.named_parameters())
    found = torch.autograd.grad(total, list(named.values()), allow_unused=True, materialize_grads=True)
    return float(total.detach()), dict(zip(named, found, strict=True))


@pytest.mark.parametrize("activation", ["tanh", "relu", "linear", "sigmoid"])
def test_signals_follow_the_recursion(network, sequences, recursion, activation):
    made, batch = network(activation=activation), sequences()
    exact = signals_of(made, batch)
    delta, instantaneous, slopes, _ = recursion(made, batch)
    for found, expected in ((exact.delta, delta), (exact.instantaneous, instantaneous), (exact.slopes, slopes)):
        torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-13)
    assert exact.leaks == (0.0,)


def test_signals_times_previous_outputs_add_up_to_the_gradient(network, sequences, recursion):
    made, batch = network(16), sequences(25, batch=7)
    delta, _, _, before = recursion(made, batch)
    exact = signals_of(made, batch)
    product = torch.einsum("bti,btj->ij", exact.delta[0], before) / batch.size
    _, gradients = autograd_of(made, batch)
    assert float((product - gradients["layers.0.weight_hh"]).abs().max()) < 2e-15
    assert float((product - torch.einsum("bti,btj->ij", delta, before) / batch.size).abs().max()) < 2e-15


@pytest.mark.parametrize("rule", [BPTT, RTRL], ids=lambda rule: rule.__name__)
def test_the_exact_rules_deliver_the_exact_gradients(network, sequences, rule):
    made, batch = network(), sequences(weights="gaps")
    exact = signals_of(made, batch)
    learner = rule(made, update="accumulate")
    for step in batch.steps():
        learner.step(step.u, step.y, step.weight, step.mask)
    learner.flush()
    for name, parameter in made.named_parameters():
        torch.testing.assert_close(parameter.grad, exact.gradients[name], rtol=0, atol=2e-15)


@pytest.mark.parametrize("ragged", [False, True], ids=["full", "ragged"])
@pytest.mark.parametrize("weights", ["varied", "gaps", "last"])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_gradients_are_those_of_autograd(network, sequences, ragged, weights, num_layers):
    made, batch = network(num_layers=num_layers), sequences(ragged=ragged, weights=weights)
    loss, gradients = autograd_of(made, batch)
    exact = signals_of(made, batch)
    assert exact.loss == pytest.approx(loss, rel=1e-12)
    assert exact.gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(exact.gradients[name], gradient, rtol=0, atol=1e-13)
    if ragged:
        assert bool((exact.delta[0][~batch.mask] == 0).all())
        assert bool(exact.delta[0].isfinite().all())


KINDS = {
    "leaky": lambda g: LeakyLayer(3, 4, leak=torch.tensor([0.1, 0.5, 0.9, 0.0], dtype=WIDE), generator=g, dtype=WIDE),
    "spiking": lambda g: SpikingLayer(3, 4, generator=g, dtype=WIDE),
    "cell": lambda g: CellLayer(RNNLayer(3, 4, generator=g, dtype=WIDE)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_signal_is_what_a_push_on_the_preactivation_does_to_the_loss(sequences, kind):
    generator = torch.Generator().manual_seed(0)
    made, batch = Network(KINDS[kind](generator), Readout(4, 2, generator=generator, dtype=WIDE)), sequences(6)
    exact = signals_of(made, batch)
    (layer,) = made.recurrent
    pushes = torch.zeros(batch.length, batch.size, 4, dtype=WIDE, requires_grad=True)
    if kind == "cell":
        # Its stand-in for a pre-activation is the state itself, so the push comes after the step.
        state, total = layer.zero_state(batch.size), 0.0
        for step, push in zip(batch.steps(), pushes, strict=True):
            (state,), _ = layer(step.u, state)
            state = (state + push,)
            total = total + (step.weight * (made.readout(state[0]) - step.y).square().mean(-1)).sum()
    else:
        state, total = layer.zero_state(batch.size), 0.0
        original = layer.current
        for step, push in zip(batch.steps(), pushes, strict=True):
            layer.current = lambda u, previous, push=push: original(u, previous) + push
            state, _ = layer(step.u, state)
            total = total + (step.weight * (made.readout(state[0]) - step.y).square().mean(-1)).sum()
        del layer.current
    (expected,) = torch.autograd.grad(total, pushes)
    torch.testing.assert_close(exact.delta[0], expected.transpose(0, 1), rtol=0, atol=1e-13)
    if kind == "leaky":
        torch.testing.assert_close(exact.leaks[0][0, 0], layer.leak)
    if kind == "cell":
        assert exact.slopes == (None,)


def test_cross_entropy_has_signals_too(network, sequences):
    made, batch = network(), sequences()
    classes = (batch.targets[..., 0] > 0).long()
    exact = exact_signals(made, batch.inputs, classes, batch.weights, loss="cross_entropy")
    outputs, _ = made(batch.inputs)
    losses = torch.nn.functional.cross_entropy(outputs.flatten(0, 1), classes.flatten(), reduction="none").view(classes.shape)
    assert exact.loss == pytest.approx(float((losses * batch.weights).sum().detach()) / batch.size, rel=1e-12)


def test_frozen_networks_have_signals_and_no_gradients(network, sequences):
    made, batch = network(), sequences()
    expected = signals_of(made, batch)
    for parameter in made.parameters():
        parameter.requires_grad_(False)
    exact = signals_of(made, batch)
    torch.testing.assert_close(exact.delta[0], expected.delta[0], rtol=0, atol=0)
    assert exact.gradients == {}


def test_sequences_without_a_loss_have_no_signal(network, sequences):
    made, batch = network(), sequences()
    exact = exact_signals(made, batch.inputs, batch.targets, torch.zeros(batch.length))
    assert exact.loss == 0.0
    assert not exact.delta[0].any()
    assert not any(gradient.any() for gradient in exact.gradients.values())


def test_weights_may_differ_by_sample(network, sequences):
    made, batch = network(), sequences()
    repeated = exact_signals(made, batch.inputs, batch.targets, batch.weights.expand(batch.size, -1))
    torch.testing.assert_close(repeated.delta[0], signals_of(made, batch).delta[0], rtol=0, atol=0)


def test_the_network_keeps_its_gradients(network, sequences):
    made, batch = network(), sequences()
    for parameter in made.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    signals_of(made, batch)
    assert all(bool((parameter.grad == 7).all()) for parameter in made.parameters())
    with torch.no_grad():
        assert signals_of(made, batch).delta[0].any()


def test_what_does_not_fit_is_refused(network, sequences):
    made, batch = network(), sequences()
    with pytest.raises(ShapeError, match="weights of shape"):
        exact_signals(made, batch.inputs, batch.targets, torch.ones(batch.length + 1))
    with pytest.raises(ShapeError, match="targets of shape"):
        exact_signals(made, batch.inputs, batch.targets[:, :3])
    with pytest.raises(ShapeError, match="mask of shape"):
        exact_signals(made, batch.inputs, batch.targets, mask=torch.ones(batch.length, dtype=torch.bool))
    with pytest.raises(ShapeError, match="at least one"):
        exact_signals(made, batch.inputs[:, :0], batch.targets[:, :0])
    with pytest.raises(InputError, match="no signals"):
        exact_signals(made, batch.inputs, batch.targets * math.inf)
    with pytest.raises(CoverageError, match="Network"):
        exact_signals(made.recurrent[0], batch.inputs, batch.targets)
    with pytest.raises(CoverageError, match="ensemble of 2"):
        exact_signals(stack_networks([network(), network(seed=1)]), batch.inputs, batch.targets)


def test_a_single_step_has_the_instantaneous_signal(network, sequences):
    exact = signals_of(network(), sequences(1))
    assert torch.equal(exact.delta[0], exact.instantaneous[0])


def test_batches_of_one_kind_are_taken_as_they_are(network, sequences):
    batch = sequences()
    assert isinstance(batch, Batch)
    assert signals_of(network(), batch).delta[0].shape == (5, 12, 6)
