"""A minimal gated recurrent unit whose candidate sees the state.

    z[t] = sigmoid(k(x[t]))
    h[t] = (1 - z[t]) * h[t-1] + z[t] * tanh(c(x[t]) + u * h[t-1])

`k` and `c` are linear maps of the input, `u` is a vector.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from pararnn import Diagonal


class ToyDrive(NamedTuple):
    """What does not see the state."""

    update: Tensor
    candidate: Tensor
    recurrent: Tensor


class ToyCell(nn.Module):
    """`state_size` channels over inputs of `input_size` channels."""

    structure = Diagonal
    state_bounds = (-1.0, 1.0)

    def __init__(self, input_size: int, state_size: int) -> None:
        super().__init__()
        self.state_size = state_size
        self.project = nn.Linear(input_size, 2 * state_size)
        self.recurrent = nn.Parameter(torch.randn(state_size) / 2)

    def initial_state(self, batch: int) -> Tensor:
        """Zeros `(batch, state)`."""
        return self.recurrent.new_zeros(batch, self.state_size)

    def drive(self, x: Tensor) -> ToyDrive:
        """Gate and candidate of every sample, and the recurrent weights."""
        update, candidate = self.project(x).chunk(2, dim=-1)
        return ToyDrive(torch.sigmoid(update), candidate, self.recurrent)

    def step(self, state: Tensor, drive: ToyDrive) -> Tensor:
        """The next state."""
        return torch.lerp(state, torch.tanh(drive.candidate + drive.recurrent * state), drive.update)

    def jacobian(self, state: Tensor, drive: ToyDrive) -> Diagonal:
        """The derivative of `step` by the state."""
        candidate = torch.tanh(drive.candidate + drive.recurrent * state)
        return Diagonal(1 - drive.update + drive.update * (1 - candidate**2) * drive.recurrent)

    def readout(self, states: Tensor) -> Tensor:
        """The states themselves."""
        return states
