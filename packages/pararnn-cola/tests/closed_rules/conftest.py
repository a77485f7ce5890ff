"""Networks of layers that tell how a weight acts on its own unit, streams for them, and the rules written as autograd with cut paths."""

from __future__ import annotations

import pytest
import torch

from pararnn_cola import LeakyLayer, Network, Readout, RNNLayer, SpikingLayer

LEAKS = torch.tensor([0.0, 0.3, 0.6, 0.9, 1.0, 0.5])


def build(*kinds, seed=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for index, kind in enumerate(kinds):
        below, options = 3 if index == 0 else 6, {"generator": generator, "dtype": dtype}
        layers.append(
            {
                "rnn": lambda below=below, options=options: RNNLayer(below, 6, **options),
                "leaky": lambda below=below, options=options: LeakyLayer(below, 6, leak=0.7, **options),
                "leaks": lambda below=below, options=options: LeakyLayer(below, 6, leak=LEAKS, activation="sigmoid", **options),
                "spiking": lambda below=below, options=options: SpikingLayer(below, 6, leak=0.8, threshold=0.5, **options),
            }[kind]()
        )
    return Network(layers, Readout(6, 2, generator=generator, dtype=dtype))


@pytest.fixture
def network():
    """A network of the kinds named, lowest first."""
    return build


@pytest.fixture
def stream():
    """Inputs, targets `(time, batch, ...)`, and weights `(time, batch)` of which some are zero."""
    generator = torch.Generator().manual_seed(8)

    def make(batch=4, length=9):
        inputs = torch.randn(length, batch, 3, generator=generator, dtype=torch.float64)
        targets = torch.randn(length, batch, 2, generator=generator, dtype=torch.float64)
        weights = torch.rand(length, batch, generator=generator, dtype=torch.float64)
        return inputs, targets, weights.where(weights > 0.3, 0.0)

    return make


@pytest.fixture
def streamed():
    """Gradients by name that a learner gathers over a stream, its weights at rest."""

    def run(rule, network, inputs, targets, weights, **options):
        learner = rule(network, update="accumulate", **options)
        for u, y, weight in zip(inputs, targets, weights, strict=True):
            learner.step(u, y, weight)
        return {name: parameter.grad.clone() for name, parameter in network.named_parameters() if parameter.grad is not None}

    return run


def advance_cut(network, u, states, own, recurrent):
    """A step in which only layer `own` remembers with a gradient: through its leak, and through the matrix `recurrent(W)` instead of W."""
    following = []
    for index, (layer, (h, *memory)) in enumerate(zip(network.recurrent, states, strict=True)):
        memory = memory if index == own else [part.detach() for part in memory]
        _, x = layer(u, (h.detach(), *memory))
        if index == own:
            x = x + (h - h.detach()) @ recurrent(layer.weight_hh).detach().mT
        h = layer.activation.function(x - getattr(layer, "threshold", 0.0))
        following.append((h, *[x for _ in memory]))
        u = h
    return network.readout(u), tuple(following)


@pytest.fixture
def cut_backpropagation():
    """Gradients by name of a stream's losses by autograd, from graphs in which all paths are cut but those that a rule follows."""

    def run(network, inputs, targets, weights, recurrent):
        found = {}
        for own in range(len(network.recurrent)):
            network.zero_grad()
            states, total = network.zero_state(inputs.shape[1]), 0.0
            for u, y, weight in zip(inputs, targets, weights, strict=True):
                output, states = advance_cut(network, u, states, own, recurrent)
                total = total + (weight * (output - y).square().mean(-1)).mean()
            total.backward()
            here = {name: parameter.grad.clone() for name, parameter in network.named_parameters()}
            found |= {name: gradient for name, gradient in here.items() if name.startswith((f"layers.{own}.", "readout"))}
        network.zero_grad()
        return found

    return run


@pytest.fixture
def backpropagate():
    """Gradients by name of a stream's losses by plain backpropagation through time."""

    def run(network, inputs, targets, weights):
        network.zero_grad()
        states, total = network.zero_state(inputs.shape[1]), 0.0
        for u, y, weight in zip(inputs, targets, weights, strict=True):
            output, states = network.advance(u, states)
            total = total + (weight * (output - y).square().mean(-1)).mean()
        total.backward()
        found = {name: parameter.grad.clone() for name, parameter in network.named_parameters()}
        network.zero_grad()
        return found

    return run
