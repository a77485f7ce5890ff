"""Somebody's cell: a minimal gated recurrent unit whose candidate sees the state, in plain PyTorch, with no kernel, no Jacobian, no backward pass.

z[t] = sigmoid(k(x[t]))
h[t] = (1 - z[t]) * h[t-1] + z[t] * tanh(c(x[t]) + u * h[t-1])
"""

import torch

from pararnn import Diagonal


class MinGRU(torch.nn.Module):
    """`state_size` channels over inputs of `input_size` channels; `k` and `c` are linear maps with biases, `u` is a vector."""

    structure = Diagonal

    def __init__(self, input_size, state_size):
        super().__init__()
        self.state_size = state_size
        self.project = torch.nn.Linear(input_size, 2 * state_size, bias=False)
        self.bias = torch.nn.Parameter(torch.randn(2 * state_size) / 2)
        self.recurrent = torch.nn.Parameter(torch.randn(state_size) / 2)

    def initial_state(self, batch):
        return self.recurrent.new_zeros(batch, self.state_size)

    def drive(self, x):
        return self.project(x)

    def step(self, state, gates):
        update, candidate = (gates + self.bias).chunk(2, dim=-1)
        return torch.lerp(state, torch.tanh(candidate + self.recurrent * state), torch.sigmoid(update))

    def readout(self, states):
        return states
