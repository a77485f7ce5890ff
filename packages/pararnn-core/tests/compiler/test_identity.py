"""The same identity, the same step: whatever a step can see of Python changes the identity, and numbers of tensors do not."""

import contextlib
import copy
import importlib
import random
import sys
import threading
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from posed_steps import STATE, assert_changes, identity, problem, values
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from pararnn.compiler.catalogue import Compiled, compiled, forget

SCALE = 0.5
TABLE = {"gain": 1.0}


def scaled(x):
    return SCALE * x


class Helper:
    """A plain object with settings and a method."""

    def __init__(self, gain):
        self.gain = gain

    def apply(self, x):
        return self.gain * x


class Switch(Helper):
    """It reads its setting, and does not compute with it."""

    def apply(self, x):
        return x if self.gain is None else 2 * x


@dataclass
class Config:
    slope: float = 0.1
    gates: tuple = ("tanh",)


class Settings(nn.Module):
    """A cell that reads settings of every kind."""

    slope = 0.2

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(STATE, dtype=torch.float64))
        self.register_parameter("bias", None)
        self.act = nn.Hardtanh(-1.0, 1.0)
        self.gain, self.mode, self.powers, self.options = 0.5, "tanh", [1, 2], {"leak": 0.1}
        self.helper, self.config, self.function = Helper(0.7), Config(), torch.tanh
        self.notes = object()

    @property
    def half(self):
        return self.gain / 2

    def mixed(self, x):
        return x * self.slope

    def step(self, state, drive):
        x = self.act(self.weight * state + drive * self.gain)
        if self.bias is not None:
            x = x + self.bias
        x = torch.tanh(x) if self.mode == "tanh" else torch.sigmoid(x)
        for power in self.powers:
            x = x + self.options["leak"] * x**power
        x = self.helper.apply(self.function(x)) + self.config.slope * x
        return self.mixed(scaled(x)) + self.half * x * TABLE["gain"]


CHANGES = {
    "number": lambda cell: setattr(cell, "gain", 0.6),
    "int for float": lambda cell: (setattr(cell, "gain", 1.0), identity(cell.step), setattr(cell, "gain", 1)),
    "text": lambda cell: setattr(cell, "mode", "sigmoid"),
    "item of a list": lambda cell: cell.powers.append(3),
    "item of a dict": lambda cell: cell.options.update(leak=0.3),
    "attribute of an object": lambda cell: setattr(cell.helper, "gain", 0.1),
    "class of an object": lambda cell: setattr(cell, "helper", type("Other", (Helper,), {"apply": lambda self, x: x})(0.7)),
    "attribute of a dataclass": lambda cell: setattr(cell.config, "slope", 0.4),
    "function": lambda cell: setattr(cell, "function", torch.sin),
    "function of one's own": lambda cell: setattr(cell, "function", lambda x: x * 2),
    "setting of a layer": lambda cell: setattr(cell.act, "max_val", 0.5),
    "layer": lambda cell: setattr(cell, "act", nn.Tanh()),
    "parameter where there was none": lambda cell: setattr(cell, "bias", nn.Parameter(torch.zeros(STATE, dtype=torch.float64))),
    "shape of a parameter": lambda cell: setattr(cell, "weight", nn.Parameter(torch.zeros((), dtype=torch.float64))),
    "dtype of a parameter": lambda cell: cell.float(),
    "training": lambda cell: cell.eval(),
    "attribute that hides one of the class": lambda cell: setattr(cell, "slope", 0.9),
    "method on the instance": lambda cell: setattr(cell, "mixed", lambda x: x),
    "hook": lambda cell: cell.act.register_forward_hook(lambda module, args, output: output * 2),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_the_step_can_see_changes_the_identity(name):
    assert_changes(Settings(), CHANGES[name])


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (Settings, "slope", 0.8),
        (Settings, "mixed", lambda self, x: x),
        (Settings, "half", property(lambda self: 0.1)),
        (Helper, "apply", lambda self, x: x),
    ],
    ids=["class attribute", "method", "property", "method of a helper"],
)
def test_a_change_of_a_class_changes_the_identity(owner, name, value, monkeypatch):
    assert_changes(Settings(), lambda cell: monkeypatch.setattr(owner, name, value))


def test_globals_and_functions_of_the_module_are_part_of_it(monkeypatch):
    assert_changes(Settings(), lambda cell: monkeypatch.setitem(globals(), "SCALE", 0.7))
    assert_changes(Settings(), lambda cell: monkeypatch.setitem(TABLE, "gain", 2.0))
    assert_changes(Settings(), lambda cell: monkeypatch.setitem(globals(), "scaled", lambda x: x))
    assert_changes(Settings(), lambda cell: monkeypatch.setattr(scaled, "__code__", (lambda x: x * 3).__code__))


@pytest.mark.parametrize("name", [one for one in CHANGES if one not in ("dtype of a parameter",)])
def test_no_trace_is_stale(name):
    cell = Settings()
    state, drive = torch.rand(2, STATE, dtype=torch.float64), torch.rand(2, STATE, dtype=torch.float64)
    assert isinstance(compiled(problem(cell.step)), Compiled)
    CHANGES[name](cell)
    found = compiled(problem(cell.step))
    torch.testing.assert_close(values(cell.step, state, drive, found), cell.step(state, drive).detach())


def test_the_form_of_the_drive_is_part_of_it():
    step = Settings().step
    leaf = torch.rand(2, 3, STATE, dtype=torch.float64)
    first, second = namedtuple("first", "x"), namedtuple("second", "x")
    forms = [leaf, leaf[..., :1], leaf.float(), (leaf,), (leaf, leaf), (leaf, leaf[0, 0]), (leaf, leaf.mean()), first(leaf), second(leaf)]
    assert len({identity(lambda state, drive: state, drive=form) for form in forms}) == len(forms)
    assert identity(step, drive=leaf) == identity(step, drive=leaf[:1, :2])

    def in_any_dtype(state, drive):
        return torch.tanh(state + drive)

    assert identity(in_any_dtype, drive=leaf) == identity(in_any_dtype, drive=leaf[:1, :2])
    assert identity(in_any_dtype, drive=leaf) != identity(in_any_dtype, drive=leaf.float(), dtype=torch.float32)


def test_what_the_step_does_not_see_is_no_part_of_it():
    cell, other = Settings(), Settings()
    before = identity(cell.step)
    cell.notes, cell.more = [object()], torch.rand(3)
    cell.unrelated = nn.Linear(3, 3)
    with torch.no_grad():
        cell.weight.fill_(0.3)
    cell.weight.requires_grad_(False)
    assert identity(cell.step) == before == identity(other.step) == identity(copy.deepcopy(cell).step)
    cell.weight = nn.Parameter(torch.zeros(STATE, dtype=torch.float64))
    assert identity(cell.step) == before


def test_what_cannot_be_compared_is_never_the_same():
    cell = Settings()
    cell.helper = Switch(memoryview(b"x"))
    first = identity(cell.step)
    assert not first.is_sure
    assert first != identity(cell.step)


class Generator(random.Random):
    """Its base class is written in C, and keeps what it knows where nobody sees it."""


def test_objects_that_hold_more_than_their_attributes_cannot_be_compared():
    cell = Settings()
    cell.helper = Switch(Generator(0))
    assert not identity(cell.step).is_sure


def test_attributes_that_are_read_by_names_made_up_at_run_time_are_all_part_of_it():
    class Dynamic(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain0, self.name = 0.5, "gain"

        def step(self, state, drive):
            return torch.tanh(getattr(self, f"{self.name}0") * state + drive)

    assert_changes(Dynamic(), lambda cell: setattr(cell, "gain0", 0.6))


def test_branches_that_are_taken_later_are_looked_at_then():
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.late, self.gain = False, 0.5

        def other(self, state):
            return state * self.gain * SCALE

        def step(self, state, drive):
            return self.other(state) if self.late else torch.tanh(state + drive)

    cell = Late()
    assert_changes(cell, lambda cell: setattr(cell, "late", True))
    assert_changes(cell, lambda cell: setattr(cell, "gain", 0.7))


class Hook:
    """An import hook with something inside that cannot be compared."""

    def __init__(self):
        self.lock = threading.Lock()

    def find_spec(self, name, path=None, target=None):
        self.lock.acquire(blocking=False)


def test_import_hooks_that_run_meanwhile_are_no_part_of_it(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [Hook(), *sys.meta_path])

    def step(state, drive):
        with contextlib.suppress(ImportError):
            importlib.import_module("a_module_that_is_not_there")
        return scaled(state) + drive

    assert identity(step).is_sure
    assert identity(step) == identity(step)


def test_transforms_and_modes_around_the_first_call_do_not_matter():
    forget()
    leaf = torch.rand(2, 3, STATE, dtype=torch.float64)
    cells = [Settings(), Settings()]

    def inside(x):
        cells[0].gain = 0.123
        assert isinstance(compiled(problem(cells[0].step, drive=leaf)), Compiled)
        return x.sum()

    torch.func.vmap(torch.func.grad(inside))(leaf)
    posed = problem(cells[1].step, drive=leaf)
    cells[1].gain = 0.234
    with torch.no_grad(), FakeTensorMode():
        found = compiled(posed)
    assert isinstance(found, Compiled)
    assert found.captured == ("weight",)
