"""Cells whose leaves and parameters have several numbers a channel, solved by every engine and held to the loop.

Engines solve what the loop solves one step after the other, in double precision. Triton is tried on the CPU where TRITON_INTERPRET is set.
"""

import os

import pytest
import torch
from reference_engine import ReferenceEngine
from torch import nn
from toy_cells import ToyCell, loop, packed_loop, weighted_sum

from pararnn import NewtonConfig
from pararnn.compiler import catalogue, solving
from pararnn.compiler.native import backend as native
from pararnn.selection import Request
from pararnn.solver.api import cell_problem

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def reference():
    return ReferenceEngine()


def triton():
    from pararnn.compiler.gpu.backend import engine

    if reasons := engine().reasons(Request.of("solve", device="cpu" if INTERPRETED else "cuda")):
        pytest.skip(" ".join(reasons))
    return engine()


def c_engine():
    if reasons := native.engine().reasons(Request.of("solve", device="cpu")):
        pytest.skip(" ".join(reasons))
    return native.engine()


ENGINES = [pytest.param((reference, "cpu"), id="reference"), pytest.param((c_engine, "cpu"), id="native")]
if INTERPRETED:
    ENGINES.append(pytest.param((triton, "cpu"), id="triton"))
ENGINES.append(pytest.param((triton, "cuda"), id="triton gpu", marks=pytest.mark.gpu))
everywhere = pytest.mark.parametrize("place", ENGINES)


class Wide(ToyCell):
    """A cell whose `step` is `body(cell, state, drive)`; `bias` has `parts` numbers a channel."""

    def __init__(self, body, state_size, parts=2, dtype=torch.float64):
        super().__init__(state_size, dtype)
        self.body, self.parts = body, parts
        self.bias = nn.Parameter(torch.randn(parts * state_size, dtype=torch.float64).to(dtype))
        self.recurrent = nn.Parameter(torch.randn(state_size, dtype=torch.float64).to(dtype) / 2)

    def initial_state(self, batch):
        return self.recurrent.new_zeros(batch, self.state_size)

    def step(self, state, drive):
        return self.body(self, state, drive)


def mixed(state, update, candidate):
    return torch.lerp(state, torch.tanh(candidate + 0.5 * state), torch.sigmoid(update))


def solved(place, cell, x, *, h0=None, offsets=None, interval="auto"):
    """The result of an engine, without the choice of a backend."""
    engine = place[0]()
    config = NewtonConfig(interval=interval)
    problem = cell_problem(cell, x, config, h0=h0, cu_seqlens=None if offsets is None else torch.tensor(offsets))
    found = catalogue.compiled(problem)
    assert isinstance(found, catalogue.Compiled), found
    return solving.solve_compiled(engine, found, problem, config)


def assert_the_loop_is_met(place, cell, x, h0=None, *, interval="auto", offsets=None, rtol=1e-9, atol=1e-9):
    """States and the gradients by inputs, initial state and parameters; those that the loop has none of are zero or none."""
    cell, x = cell.to(place[1]), x.detach().to(place[1]).requires_grad_()
    h0 = None if h0 is None else h0.detach().to(place[1]).requires_grad_()
    sources = [x, *([] if h0 is None else [h0]), *cell.parameters()]
    states = solved(place, cell, x, h0=h0, offsets=offsets, interval=interval).states
    exact = [source.detach().double().requires_grad_() for source in sources]
    double = Wide(cell.body, cell.state_size, cell.parts).to(place[1])
    double.bias, double.recurrent = nn.Parameter(exact[-2].detach()), nn.Parameter(exact[-1].detach())
    exact[-2:] = [double.bias, double.recurrent]
    start = exact[1] if h0 is not None else double.initial_state(1 if offsets is None else len(offsets) - 1)
    truth = loop(double, exact[0], start) if offsets is None else packed_loop(double, exact[0], offsets, start)
    torch.testing.assert_close(states.double(), truth, rtol=rtol, atol=atol)
    found, wanted = (
        torch.autograd.grad(weighted_sum(one.double().cpu()), given, allow_unused=True) for one, given in ((states, sources), (truth, exact))
    )
    for mine, theirs, source in zip(found, wanted, sources, strict=True):
        if theirs is None:
            assert mine is None or not mine.any()
        else:
            assert (mine.shape, mine.dtype) == (source.shape, source.dtype)
            scale = max(1.0, float(theirs.abs().max()))
            torch.testing.assert_close(mine.double(), theirs, rtol=30 * rtol, atol=30 * atol * scale)


def with_bias(cell, state, gates):
    update, candidate = (gates + cell.bias).chunk(2, dim=-1)
    return torch.lerp(state, torch.tanh(candidate + cell.recurrent * state), torch.sigmoid(update))


def gru(cell, state, gates):
    update, reset, candidate = gates.chunk(3, -1)
    of_update, of_reset, of_candidate = cell.bias.chunk(3)
    update, reset = torch.sigmoid(update + of_update * state), torch.sigmoid(reset + of_reset * state)
    return torch.lerp(state, torch.tanh(candidate + of_candidate * (reset * state)), update)


def lstm_like(cell, state, gates):
    squashed = torch.sigmoid(gates + cell.bias)
    forget, enter, _, leave = squashed.chunk(4, -1)
    return leave * torch.tanh(forget * state + enter * torch.tanh(cell.recurrent * state))


def in_part(cell, state, gates):
    # The third part of the leaf, and the second of the bias, are never read.
    return mixed(state, gates[..., : state.shape[-1]] + cell.bias[: state.shape[-1]], gates.split(state.shape[-1], -1)[1])


CELLS = {"bias": (with_bias, 2), "gru": (gru, 3), "lstm": (lstm_like, 4), "in part": (in_part, 3)}
