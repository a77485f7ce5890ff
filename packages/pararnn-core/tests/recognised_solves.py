"""Cells that are solved again and again on every engine, held to the loop.

In C where there is a compiler, in Triton where TRITON_INTERPRET is set (which takes a process of its own), and on a GPU.
"""

import os

import pytest
import torch
from torch import nn
from toy_cells import Tanh, ToyCell, loop

from pararnn import newton_apply
from pararnn.compiler.native import backend
from pararnn.selection import Request

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
ENGINES = {
    "reference": pytest.param("reference", id="reference"),
    "native": pytest.param("native", id="native"),
    "triton": pytest.param("triton", id="triton"),
    "gpu": pytest.param("gpu", id="triton, gpu", marks=pytest.mark.gpu),
}
if backend.engine().reasons(Request.of("solve")):
    del ENGINES["native"]
if not INTERPRETED:
    del ENGINES["triton"]
everywhere = pytest.mark.parametrize("place", ENGINES.values(), indirect=True)
# Where it is all the same who computes.
anywhere = pytest.mark.parametrize("place", [ENGINES["reference"], ENGINES["gpu"]], indirect=True)
SCALE = 0.5


class Squash(Tanh):
    """It begins on the device of its weights."""

    def initial_state(self, batch):
        return self.weight.new_zeros(batch, self.state_size)


class Settings(ToyCell):
    """A cell whose step reads settings of every kind."""

    slope = 0.2

    def __init__(self):
        super().__init__(3)
        self.weight = nn.Parameter(torch.rand(3, dtype=torch.float64))
        self.register_parameter("bias", None)
        self.register_buffer("offset", torch.rand(3, dtype=torch.float64))
        self.act, self.outer = nn.Hardtanh(-1.0, 1.0), nn.Sequential(nn.Tanh())
        self.gain, self.powers, self.options, self.shape = 0.5, [1, 2], {"leak": 0.1}, (1.0, 2.0)
        self.function, self.times = torch.tanh, 1
        self.project = nn.Linear(3, 3, dtype=torch.float64)

    def initial_state(self, batch):
        return self.offset.new_zeros(batch, self.state_size)

    def drive(self, x):
        return self.project(x)

    def mixed(self, x):
        return x * self.slope

    def step(self, state, drive):
        x = self.outer(self.act(self.weight * state + drive * self.gain)) + self.offset * self.shape[0]
        x = x if self.bias is None else x + self.bias
        for power in self.powers:
            x = x + self.options["leak"] * x**power
        return SCALE * self.function(self.mixed(x)) * self.times


def inputs(place, *, batch=2, length=9, features=3, requires_grad=False):
    x = torch.randn(batch, length, features, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(place[1])
    return x.requires_grad_(requires_grad)


def learnt(cell, x, config, **options):
    """`cell` after so many solves of the form of `x` that the next is recognised."""
    for _ in range(3):
        newton_apply(cell, x, config, **options)
    return cell


def assert_right(cell, x, config, h0=None):
    """States and gradients are those of the loop."""
    sources = [one for one in (x, h0, *cell.parameters()) if one is not None and one.requires_grad]
    states, truth = newton_apply(cell, x, config, h0=h0), loop(cell, x, h0)
    torch.testing.assert_close(states, truth, rtol=1e-9, atol=1e-9)
    if sources and states.requires_grad:
        ours, expected = (torch.autograd.grad(one.square().sum(), sources, allow_unused=True) for one in (states, truth))
        torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-8)
