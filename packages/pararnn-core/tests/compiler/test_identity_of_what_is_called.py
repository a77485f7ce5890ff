"""Changes of what Python and PyTorch call, or look up, where the code of a step does not mention it: no solve after one is stale."""

import pytest
import torch
from reference_engine import ReferenceEngine
from torch import nn
from torch.nn.modules import module as modules
from toy_cells import ToyCell, loop

from pararnn import NewtonConfig, newton_apply
from pararnn.compiler import catalogue
from pararnn.compiler.native import backend
from pararnn.selection import Request, clear_cache
from pararnn.solver import again

STATE = 3
PLACES = ["reference"] if backend.engine().reasons(Request.of("solve")) else ["reference", "native"]


@pytest.fixture(params=PLACES)
def config(request, monkeypatch):
    clear_cache()
    again.forget()
    catalogue.forget()
    torch.manual_seed(0)
    if request.param == "reference":
        made = ReferenceEngine()
        made.name = "native"
        monkeypatch.setattr(backend, "engine", lambda: made)
        monkeypatch.setattr(backend.solve, "engine", lambda: made)
    yield NewtonConfig(backend="native")
    clear_cache()
    again.forget()


class Squash(nn.Module):
    def forward(self, x):
        return torch.tanh(x)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 0.5

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.5


class Lookup:
    """A descriptor with a setting."""

    value = 0.5

    def __get__(self, instance, owner=None):
        return self.value


class Operator:
    """An object that is called, indexed and multiplied with."""

    def __call__(self, x):
        return x * 0.5

    def __getitem__(self, index):
        return 0.25

    def __rmul__(self, other):
        return other * 0.9


def gained(x):
    return x * gained.gain


gained.gain = 0.5
TABLE = {"gain": 0.7}
GET = TABLE.get


class Called(ToyCell):
    """A cell that calls things of every kind."""

    looked_up = Lookup()

    def __init__(self):
        super().__init__(STATE)
        self.weight = nn.Parameter(torch.rand(STATE, dtype=torch.float64))
        self.squash, self.tanh = Squash(), nn.Tanh()
        self.operator, self.options = Operator(), {"leak": 0.1}
        self.get = self.options.get
        self.kept, self.several = nn.ParameterDict({"strength": 0.5}), nn.ParameterList([0.5])

    def step(self, state, drive):
        x = self.tanh(Scaled.apply(self.weight * state) + drive)
        x = self.squash(x) + gained(x) * self.looked_up + x * self.get("leak") * GET("gain")
        return self.operator(x) * self.kept["strength"] + self.several[0] * self.operator[0] * state + 0.1 * x.sin() * self.operator


def assert_right(cell, config, x):
    """Three solves, the last of which may be recognised, give the states and gradients of the loop."""
    for _ in range(3):
        found, wanted = newton_apply(cell, x, config), loop(cell, x)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), cell.weight), torch.autograd.grad(wanted.sum(), cell.weight))


def sequence():
    return torch.randn(2, 7, STATE, dtype=torch.float64)


CHANGES = {
    "forward of a layer": lambda cell, patch: setattr(cell.tanh, "forward", lambda x: x.sin()),
    "forward of a module": lambda cell, patch: setattr(cell.squash, "forward", lambda x: x.sin()),
    "forward of a class": lambda cell, patch: patch.setattr(Squash, "forward", lambda self, x: x.sin()),
    "call of a class of modules": lambda cell, patch: patch.setattr(Squash, "__call__", lambda self, x: x.sin(), raising=False),
    "forward of a function": lambda cell, patch: patch.setattr(Scaled, "forward", staticmethod(lambda ctx, x: x * 0.1)),
    "backward of a function": lambda cell, patch: patch.setattr(Scaled, "backward", staticmethod(lambda ctx, grad: grad * 0.1)),
    "call of an object": lambda cell, patch: patch.setattr(Operator, "__call__", lambda self, x: x * 0.1),
    "index of an object": lambda cell, patch: patch.setattr(Operator, "__getitem__", lambda self, index: 0.1),
    "operator of an object": lambda cell, patch: patch.setattr(Operator, "__rmul__", lambda self, other: other * 0.1),
    "descriptor": lambda cell, patch: patch.setattr(Lookup, "__get__", lambda self, instance, owner=None: 0.1),
    "setting of a descriptor": lambda cell, patch: patch.setattr(vars(Called)["looked_up"], "value", 0.1),
    "attribute of a function": lambda cell, patch: patch.setattr(gained, "gain", 0.1),
    "dict of a method": lambda cell, patch: cell.options.update(leak=0.3),
    "dict of a global method": lambda cell, patch: patch.setitem(TABLE, "gain", 0.1),
    "number in a ParameterDict": lambda cell, patch: cell.kept.__setitem__("strength", 0.1),
    "number in a ParameterList": lambda cell, patch: cell.several.__setitem__(0, 0.1),
    "backward hook": lambda cell, patch: cell.tanh.register_full_backward_hook(lambda module, before, after: (before[0] * 0.5,)),
    "backward pre-hook": lambda cell, patch: cell.tanh.register_full_backward_pre_hook(lambda module, grads: (grads[0] * 0.5,)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_no_solve_after_a_change_is_stale(config, recognised, monkeypatch, name):
    cell, x = Called(), sequence()
    assert_right(cell, config, x)
    assert recognised == [False, False, True]
    CHANGES[name](cell, monkeypatch)
    assert_right(cell, config, x)


def test_hooks_of_several_layers_are_told_apart(config):
    def times(factor):
        return lambda module, args, output: output * factor

    cell, x = Called(), sequence()
    cell.squash.register_forward_hook(times(0.7))
    for factor in (0.5, 0.3, 0.1):
        handle = cell.tanh.register_forward_hook(times(factor))
        assert_right(cell, config, x)
        handle.remove()


@pytest.mark.parametrize(
    ("register", "hook"),
    [
        (modules.register_module_forward_hook, lambda module, args, output: output * 0.5),
        (modules.register_module_forward_pre_hook, lambda module, args: (args[0] * 0.5,)),
        (modules.register_module_full_backward_hook, lambda module, before, after: tuple(grad * 0.5 for grad in before)),
        (modules.register_module_full_backward_pre_hook, lambda module, grads: tuple(grad * 0.5 for grad in grads)),
    ],
    ids=["forward", "forward pre", "backward", "backward pre"],
)
def test_hooks_of_all_modules_count_while_they_are_there(config, recognised, register, hook):
    cell, other, x = Called(), Called(), sequence()
    assert_right(cell, config, x)
    handle = register(hook)
    try:
        assert_right(cell, config, x)
        assert_right(other, config, x)
    finally:
        handle.remove()
    assert not any(recognised[3:])
    assert_right(cell, config, x)
    assert_right(other, config, x)
    assert recognised[-1]
