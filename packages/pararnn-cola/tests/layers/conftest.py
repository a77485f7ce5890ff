"""Networks of each kind of layer, streams for them, and backpropagation as their oracle."""

from __future__ import annotations

import pytest
import torch

from pararnn_cola import ConvLayer, LeakyLayer, Network, Readout, RNNLayer, SpikingLayer
from pararnn_cola.experimental import LSTMLayer

LEAKS = torch.tensor([0.0, 0.3, 0.6, 0.9, 1.0, 0.5, 0.8])


def dense_layer(kind, below, generator):
    options = {"generator": generator, "dtype": torch.float64}
    return {
        "rnn": lambda: RNNLayer(below, 7, **options),
        "leaky": lambda: LeakyLayer(below, 7, leak=0.7, **options),
        "leaks": lambda: LeakyLayer(below, 7, leak=LEAKS, activation="softplus", **options),
        "fast_sigmoid": lambda: SpikingLayer(below, 7, leak=0.8, threshold=0.5, **options),
        "arctan": lambda: SpikingLayer(below, 7, leak=LEAKS, threshold=0.5, surrogate="arctan", steepness=2.0, **options),
        "triangle": lambda: SpikingLayer(below, 7, leak=0.9, threshold=0.4, surrogate="triangle", height=0.3, **options),
        "lstm": lambda: LSTMLayer(below, 7, **options),
    }[kind]()


def build(*kinds):
    generator = torch.Generator().manual_seed(3)
    layers = []
    for index, kind in enumerate(kinds):
        if kind in ("maps", "rows"):
            size = (4, 5) if kind == "maps" else (6,)
            layers.append(ConvLayer(2 if index == 0 else 3, 3, 3, size=size, generator=generator, dtype=torch.float64))
        else:
            layers.append(dense_layer(kind, 3 if index == 0 else 7, generator))
    top = layers[-1].zero_state(1)[0][0]
    network = Network(layers, Readout(top.numel(), 2, unit_dims=layers[-1].unit_dims, generator=generator, dtype=torch.float64))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return network


@pytest.fixture
def network():
    """A network of the kinds named, lowest first."""
    return build


@pytest.fixture
def stream():
    """Inputs and targets `(time, batch, ...)` for a network."""

    def make(network, batch=4, length=9):
        generator = torch.Generator().manual_seed(batch)
        layer = network.recurrent[0]
        shape = (layer.in_channels, *layer.size) if isinstance(layer, ConvLayer) else (layer.input_size,)
        inputs = torch.randn(length, batch, *shape, generator=generator, dtype=torch.float64)
        return inputs, torch.randn(length, batch, 2, generator=generator, dtype=torch.float64)

    return make


@pytest.fixture
def backpropagate():
    """Gradients by name of the summed losses, by autograd; `detached` cuts the state before each step."""

    def run(network, inputs, targets, *, detached):
        network.zero_grad()
        states, total = network.zero_state(inputs.shape[1]), 0.0
        for u, y in zip(inputs, targets, strict=True):
            if detached:
                states = tuple(tuple(part.detach() for part in state) for state in states)
            output, states = network.advance(u, states)
            total = total + (output - y).square().mean(-1).mean()
        total.backward()
        found = {name: parameter.grad.clone() for name, parameter in network.named_parameters() if parameter.grad is not None}
        network.zero_grad()
        return found

    return run


@pytest.fixture
def streamed():
    """Gradients by name that a learner gathers over a stream, its weights at rest."""

    def run(rule, network, inputs, targets, **options):
        learner = rule(network, update="accumulate", **options)
        for u, y in zip(inputs, targets, strict=True):
            learner.step(u, y)
        return {name: parameter.grad.clone() for name, parameter in network.named_parameters() if parameter.grad is not None}

    return run
