"""Networks of known exponents, and the exponent as its definition has it: the plain product of Jacobians taken by autograd."""

import math

import pytest
import torch

from pararnn_cola import Network

WIDE = torch.float64


@pytest.fixture
def network():
    """`network(kind, state_size, activation=..., gain=...)`: Gaussian, orthogonal or identity-like recurrent weights, in float64."""

    def make(kind="gauss", state_size=64, *, activation="tanh", gain=1.0, seed=0, input_size=3, num_layers=1):
        made = Network.rnn(input_size, state_size, 2, activation=activation, seed=seed, dtype=WIDE, num_layers=num_layers)
        with torch.no_grad():
            for layer in made.recurrent:
                weight = layer.weight_hh
                if kind == "orthogonal":
                    weight.copy_(torch.linalg.qr(weight)[0])
                elif kind == "identity-like":
                    weight.copy_(torch.eye(state_size, dtype=WIDE) + 0.1 * weight)
                weight.mul_(gain)
        return made

    return make


@pytest.fixture
def drive():
    """`drive(length, scale=..., batch=...)`: normal inputs, the same every time."""

    def make(length, *, scale=1.0, batch=4, input_size=3, seed=1):
        generator = torch.Generator().manual_seed(seed)
        return scale * torch.randn(batch, length, input_size, generator=generator, dtype=WIDE)

    return make


@pytest.fixture
def by_definition():
    """`by_definition(step, initial, inputs)`: log of the largest singular value of the product over T, one trajectory at a time, in float64."""

    def measure(step, initial, inputs, burn_in=0):
        exponents = []
        for sequence in inputs:
            state = initial(1)
            product = torch.eye(state.shape[-1], dtype=WIDE)
            for time, u in enumerate(sequence):
                if time >= burn_in:
                    jacobian = torch.autograd.functional.jacobian(lambda at, u=u: step(at, u.unsqueeze(0)), state)
                    product = jacobian[0, :, 0].to(WIDE) @ product
                state = step(state, u.unsqueeze(0)).detach()
            norm = float(torch.linalg.svdvals(product)[0])
            exponents.append(math.log(norm) / (len(sequence) - burn_in) if norm > 0 else -math.inf)
        return exponents

    return measure
