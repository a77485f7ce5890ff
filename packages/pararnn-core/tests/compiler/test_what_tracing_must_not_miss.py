"""Steps whose first trace once gave other numbers than the step: each is right now, or refused."""

import contextvars

import pytest
import torch
from torch import nn
from toy_cells import ToyCell, loop

from pararnn import NewtonConfig, ParaRNN, newton_apply
from pararnn.errors import BackendError, CompilationError

COMPILED = NewtonConfig(backend="native")
SETTING = contextvars.ContextVar("SETTING", default=0.5)


class Stepped(ToyCell):
    """A cell with a weight and the step that it is given, of two inputs and two channels."""

    def __init__(self, step):
        super().__init__(2, torch.float64)
        self.weight = nn.Parameter(torch.tensor([0.3, 0.7], dtype=torch.float64))
        self.stepped = step

    def drive(self, x):
        return x

    def step(self, h, drive):
        return self.stepped(self, h, drive)


def x():
    return torch.randn(2, 9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def is_right_or_refused(cell, *, is_refused):
    if is_refused:
        with pytest.raises((CompilationError, BackendError)):
            newton_apply(cell, x(), COMPILED)
        return
    states, truth = newton_apply(cell, x(), COMPILED), loop(cell, x())
    torch.testing.assert_close(states, truth, rtol=1e-12, atol=1e-12)
    ours, expected = (torch.autograd.grad(one.square().sum(), cell.parameters(), allow_unused=True) for one in (states, truth))
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


def number(value, dtype=None):
    return torch.tensor(value, dtype=dtype)


STEPS = {
    "whole numbers are cut off": (lambda s, h, z: torch.tanh(s.weight * h + z) * number(2.7).long() / 3, False),
    "filled with a number cut off": (lambda s, h, z: torch.tanh(s.weight * h + z) * torch.full((), 2.7, dtype=torch.int64) / 3, False),
    "small whole numbers wrap": (lambda s, h, z: torch.tanh(s.weight * h + z) * number(300).to(torch.uint8) / 100, False),
    "halves are rounded": (lambda s, h, z: torch.tanh(s.weight * h + z) * number(0.1).half(), False),
    "single precision is rounded": (lambda s, h, z: torch.tanh(s.weight * h + z) * torch.full((), 0.1, dtype=torch.float32).double(), False),
    "sums of small whole numbers": (lambda s, h, z: s.weight * h + z * (number(200, torch.uint8) + number(200, torch.uint8)) / 400, True),
    "bits of whole numbers": (lambda s, h, z: s.weight * h + z * (number(6) & number(3)) / 4, True),
    "a quotient in single precision": (lambda s, h, z: s.weight * h + z * (number(1.0, torch.float32) / 3).double(), True),
    "bits as another number": (lambda s, h, z: s.weight * h + z.view(torch.int64).to(torch.float64) * 1e-19, True),
    "bits copied": (lambda s, h, z: s.weight * h + 1e-19 * torch.empty(h.shape, dtype=torch.float64).copy_(h.detach().view(torch.int64)), True),
    "channel 0 for all": (lambda s, h, z: s.weight * h + (y := z * 1.0).as_strided(y.shape, (*y.stride()[:-1], 0)), True),
    "rows exchanged with channels": (lambda s, h, z: s.weight * h + (y := h.detach() * 1.0).as_strided(y.shape, (*[0] * (y.ndim - 1), 1)), True),
}


@pytest.mark.parametrize("name", STEPS)
def test_constants_and_views_are_what_they_are_in_pytorch(name):
    step, is_refused = STEPS[name]
    is_right_or_refused(Stepped(step), is_refused=is_refused)


def test_context_variables_are_those_of_the_caller():
    token = SETTING.set(0.9)
    try:
        is_right_or_refused(Stepped(lambda s, h, z: torch.tanh(SETTING.get() * h + s.weight * z)), is_refused=False)
    finally:
        SETTING.reset(token)


class Squashed(Stepped):
    """Its weight is a property that hides the parameter of the same name."""

    def __init__(self):
        ToyCell.__init__(self, 2, torch.float64)
        self._parameters["weight"] = nn.Parameter(torch.tensor([0.3, 0.7], dtype=torch.float64))
        self.stepped = lambda s, h, z: torch.tanh(s.weight * h + z)

    @property
    def weight(self):
        return self._parameters["weight"].sigmoid()


class Doubled(Stepped):
    """Its parameters come out of `__getattr__` with twice their numbers."""

    def __getattr__(self, name):
        found = super().__getattr__(name)
        return found * 2 if name == "weight" else found


@pytest.mark.parametrize("make", [Squashed, lambda: Doubled(lambda s, h, z: torch.tanh(s.weight * h + z))], ids=["a property", "__getattr__"])
def test_attributes_that_code_makes_of_parameters_are_refused(make):
    is_right_or_refused(make(), is_refused=True)


def in_a_graph(cell, leaf):
    return torch.compile(ParaRNN(cell, config=COMPILED), backend="aot_eager", fullgraph=True)(leaf)


@pytest.mark.parametrize("run", [lambda cell, leaf: newton_apply(cell, leaf, COMPILED), in_a_graph], ids=["a solve", "a graph"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_leaves_of_half_precision_have_their_gradients_beside_states_of_double(dtype, run):
    cell = Stepped(lambda s, h, z: torch.tanh(s.weight * h + z))
    leaf = x().to(dtype).requires_grad_()
    found, truth = (torch.autograd.grad(way(cell, leaf).double().square().sum(), leaf)[0] for way in (run, loop))
    torch.testing.assert_close(found, truth, rtol=1e-2, atol=1e-2)
