"""Networks, sequences with gaps, and the exact signals as the recursion of backpropagation through time has them."""

import pytest
import torch

from pararnn_cola import Network
from pararnn_cola.tasks.base import Batch

WIDE = torch.float64


@pytest.fixture
def network():
    """`network(state_size, ...)` in float64, the same for the same arguments."""

    def make(state_size=6, *, activation="tanh", num_layers=1, seed=0, gain=1.0, dtype=WIDE):
        made = Network.rnn(3, state_size, 2, activation=activation, num_layers=num_layers, seed=seed, dtype=dtype)
        with torch.no_grad():
            for layer in made.recurrent:
                layer.weight_hh.mul_(gain)
                layer.bias.copy_(torch.linspace(-0.3, 0.3, state_size))
        return made

    return make


@pytest.fixture
def sequences():
    """`sequences(length, ...)`: normal inputs and targets, weights that differ over time, optionally rows of different lengths."""

    def make(length=12, *, batch=5, seed=3, ragged=False, weights="varied", dtype=WIDE):
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(batch, length, 3, generator=generator, dtype=dtype)
        targets = torch.randn(batch, length, 2, generator=generator, dtype=dtype)
        weight = torch.rand(length, generator=generator, dtype=dtype) + 0.1
        if weights == "last":
            weight = torch.zeros(length, dtype=dtype)
            weight[-1] = 1.0
        elif weights == "gaps":
            weight[1::3] = 0.0
        mask = None
        if ragged:
            mask = torch.arange(length) < (length - torch.arange(batch)).unsqueeze(-1)
            inputs[~mask] = torch.nan
            targets[~mask] = torch.nan
        return Batch(inputs, targets, weight, mask)

    return make


@pytest.fixture
def recursion():
    """`recursion(network, batch)`: delta, d and p of a network of one vanilla layer and squared error, `(batch, time, units)`, by hand."""

    @torch.no_grad()
    def run(network, batch):
        layer, readout = network.recurrent[0], network.readout
        state = torch.zeros(batch.size, layer.state_size, dtype=WIDE)
        before, instantaneous, slopes = [], [], []
        for time in range(batch.length):
            before.append(state)
            x = state @ layer.weight_hh.T + batch.inputs[:, time] @ layer.weight_ih.T + layer.bias
            state = layer.activation.function(x)
            slope = layer.activation.slope(x, state)
            error = batch.weights[time] * (2 / readout.output_size) * (state @ readout.weight.T + readout.bias - batch.targets[:, time])
            slopes.append(slope)
            instantaneous.append(slope * (error @ readout.weight))
        delta = [instantaneous[-1]]
        for d, p in zip(reversed(instantaneous[:-1]), reversed(slopes[:-1]), strict=True):
            delta.insert(0, d + p * (delta[0] @ layer.weight_hh))
        return tuple(torch.stack(part, 1) for part in (delta, instantaneous, slopes, before))

    return run
