"""The good cell from which the wrong ones of these tests are made."""

import sys
import types
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from pararnn.structures import Diagonal


class GatedDrive(NamedTuple):
    keep: Tensor
    candidate: Tensor
    recurrent: Tensor


class GatedCell(nn.Module):
    """`h[t] = z[t] h[t-1] + (1 - z[t]) tanh(c[t] + u h[t-1])`, channelwise, with all optional members that a cell may have."""

    structure = Diagonal
    state_bounds = (-1.0, 1.0)

    def __init__(self, size=4, dtype=torch.float64):
        super().__init__()
        self.state_size = size
        self.project = nn.Linear(size, 2 * size, dtype=dtype)
        self.recurrent = nn.Parameter(0.8 * torch.randn(size, dtype=dtype))

    def reset_parameters(self):
        self.project.reset_parameters()

    def initial_state(self, batch):
        return self.recurrent.new_zeros(batch, self.state_size)

    def drive(self, x):
        keep, candidate = self.project(x).chunk(2, dim=-1)
        return GatedDrive(torch.sigmoid(keep), candidate, self.recurrent)

    def step(self, state, drive):
        return drive.keep * state + (1 - drive.keep) * torch.tanh(drive.candidate + drive.recurrent * state)

    def jacobian(self, state, drive):
        slope = 1 - torch.tanh(drive.candidate + drive.recurrent * state) ** 2
        return Diagonal(drive.keep + (1 - drive.keep) * slope * drive.recurrent)

    def readout(self, states):
        return states

    def guess(self, drive, initial):
        return torch.tanh(drive.candidate)

    def newton_iters(self, length):
        return 3


@pytest.fixture
def gated(monkeypatch):
    """The class of the good cell, in a module from which pickle can import it and classes that `define` adds."""
    module = types.ModuleType("gated_cells")
    monkeypatch.setitem(sys.modules, "gated_cells", module)
    monkeypatch.setattr(GatedCell, "__module__", "gated_cells")
    module.GatedCell = GatedCell
    return GatedCell


@pytest.fixture
def define(gated):
    """Make a cell of a variant of the good one, with members replaced, and samples for it."""

    def make(**members):
        variant = type("Variant", (gated,), {"__module__": "gated_cells", **members})
        sys.modules["gated_cells"].Variant = variant
        torch.manual_seed(1)
        return variant(), torch.randn(3, 9, 4, dtype=torch.float64)

    return make
