"""The same identity, the same step: whatever a step can see of Python changes the identity, and numbers of tensors do not."""

import contextlib
import copy
import functools
import importlib
import random
import sys
import threading
import types
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.nn import functional as F

from pararnn.compiler.catalogue import Compiled, compiled, forget
from pararnn.compiler.identity import StepIdentity
from pararnn.solver.problem import Problem
from pararnn.structures import Diagonal

STATE = 4
SCALE = 0.5
TABLE = {"gain": 1.0}
WEIGHT = torch.full((STATE,), 0.3, dtype=torch.float64)


def problem(step, *, drive=None, dtype=torch.float64, state=STATE):
    drive = torch.rand(2, 3, state, dtype=dtype) if drive is None else drive
    return Problem(step=step, structure=Diagonal, drive=drive, initial=torch.zeros(2, 1, state, dtype=dtype), cell=getattr(step, "__self__", step))


def identity(step, **facts):
    return StepIdentity.of(problem(step, **facts))


def scaled(x):
    return SCALE * x


class Helper:
    """A plain object with settings and a method."""

    def __init__(self, gain):
        self.gain = gain

    def apply(self, x):
        return self.gain * x


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


def assert_changes(cell, change, step=None):
    step = cell.step if step is None else step
    before = identity(step)
    assert before == identity(step)
    change(cell)
    after = identity(cell.step if isinstance(step, types.MethodType) else step)
    assert before != after
    assert after == identity(cell.step if isinstance(step, types.MethodType) else step)


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


def test_defaults_and_free_variables_are_part_of_it():
    def make(gain, shift=0.1):
        def step(state, drive, *, shift=shift):
            return torch.tanh(gain * state + drive + shift)

        return step

    assert identity(make(0.5)) == identity(make(0.5))
    assert identity(make(0.5)) != identity(make(0.6))
    assert identity(make(0.5)) != identity(make(0.5, shift=0.2))


def test_functions_in_free_variables_are_compared_by_what_they_do():
    def make(gain):
        def inner(x):
            return gain * x

        return lambda state, drive: torch.tanh(inner(state) + drive)

    assert identity(make(0.5)) == identity(make(0.5))
    assert identity(make(0.5)) != identity(make(0.6))


def test_the_form_of_the_drive_is_part_of_it():
    step = Settings().step
    leaf = torch.rand(2, 3, STATE, dtype=torch.float64)
    first, second = namedtuple("first", "x"), namedtuple("second", "x")
    forms = [leaf, leaf[..., :1], leaf.float(), (leaf,), (leaf, leaf), (leaf, leaf[0, 0]), (leaf, leaf.mean()), first(leaf), second(leaf)]
    assert len({identity(lambda state, drive: state, drive=form) for form in forms}) == len(forms)
    assert identity(step, drive=leaf) == identity(step, drive=leaf[:1, :2])
    assert identity(step, drive=leaf) != identity(step, drive=leaf.float(), dtype=torch.float32)


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
    cell.helper.gain = memoryview(b"x")
    first = identity(cell.step)
    assert not first.is_sure
    assert first != identity(cell.step)


def times(factor, x):
    return factor * x


def test_arguments_that_a_function_was_given_beforehand_are_part_of_it():
    def of(factor):
        return identity(functools.partial(by_a_function, functools.partial(times, factor)))

    assert of(0.3) == of(0.3)
    assert of(0.3) != of(0.8)


def by_a_function(function, state, drive):
    return torch.tanh(function(state) + drive)


class Generator(random.Random):
    """Its base class is written in C, and keeps what it knows where nobody sees it."""


def test_objects_that_hold_more_than_their_attributes_cannot_be_compared():
    cell = Settings()
    cell.helper.gain = Generator(0)
    assert not identity(cell.step).is_sure


GRADIENT = 2.0


def amplified(grad):
    return GRADIENT * grad


class Amplified(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return amplified(grad)


def test_what_a_derivative_reads_is_part_of_it(monkeypatch):
    def with_function(state, drive):
        return torch.tanh(Amplified.apply(state) + drive)

    def with_hook(state, drive):
        x = torch.tanh(state + drive)
        x.register_hook(amplified)
        return x * 1.0

    for step in (with_function, with_hook):
        monkeypatch.setitem(globals(), "GRADIENT", 2.0)
        before, found = identity(step), compiled(problem(step))
        assert isinstance(found, Compiled)
        monkeypatch.setitem(globals(), "GRADIENT", 3.0)
        assert identity(step) != before
        assert compiled(problem(step)).program.pull != found.program.pull


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


def values(step, state, drive, found):
    """What the program of `found` gives for a state and the drive of one step."""
    from pararnn.compiler.reference import walk

    posed = problem(step, drive=drive.unsqueeze(1))
    return walk(found.program, found.operands(posed), state)[:, 0]


@pytest.mark.parametrize("name", [one for one in CHANGES if one not in ("dtype of a parameter",)])
def test_no_trace_is_stale(name):
    cell = Settings()
    state, drive = torch.rand(2, STATE, dtype=torch.float64), torch.rand(2, STATE, dtype=torch.float64)
    assert isinstance(compiled(problem(cell.step)), Compiled)
    CHANGES[name](cell)
    found = compiled(problem(cell.step))
    torch.testing.assert_close(values(cell.step, state, drive, found), cell.step(state, drive).detach())


class Read(nn.Module):
    """A cell that reads a parameter, a buffer, a plain tensor and a global one."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(1, STATE, dtype=torch.float64))
        self.register_buffer("mask", torch.tensor([True, False, True, True]))
        self.offset = torch.rand((), dtype=torch.float64)

    def step(self, state, drive):
        return torch.where(self.mask, torch.tanh(self.weight * state + drive), state) * WEIGHT + self.offset


def test_parameters_are_fetched_by_name_at_each_solve(monkeypatch):
    forget()
    cell = Read()
    state, drive = torch.rand(2, STATE, dtype=torch.float64), torch.rand(2, STATE, dtype=torch.float64)
    found = compiled(problem(cell.step))
    assert found.captured == ("weight", "mask", "offset", "WEIGHT")

    def agrees():
        assert compiled(problem(cell.step)) is found
        torch.testing.assert_close(values(cell.step, state, drive, found), cell.step(state, drive).detach())

    agrees()
    with torch.no_grad():
        cell.weight.mul_(2)
    agrees()
    cell.weight, cell.mask, cell.offset = nn.Parameter(torch.rand(1, STATE, dtype=torch.float64)), ~cell.mask, torch.tensor(0.1, dtype=torch.float64)
    agrees()
    monkeypatch.setitem(globals(), "WEIGHT", torch.rand(STATE, dtype=torch.float64))
    agrees()
    fresh = {"weight": torch.rand(1, STATE, dtype=torch.float64, requires_grad=True)}

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell

        def forward(self):
            agrees()
            return found.operands(problem(cell.step))[1]

    weight = functional_call(Around(), {"cell.weight": fresh["weight"]}, ())
    torch.autograd.backward(weight.sum())
    torch.testing.assert_close(fresh["weight"].grad, torch.ones(1, STATE, dtype=torch.float64))


def test_operands_come_in_the_shapes_and_dtypes_that_engines_take():
    cell = Read()
    leaf = torch.rand(2, 3, STATE, dtype=torch.float64, requires_grad=True)
    operands = compiled(problem(cell.step, drive=leaf)).operands(problem(cell.step, drive=leaf))
    assert operands[0] is leaf
    assert [tuple(operand.shape) for operand in operands] == [(2, 3, STATE), (STATE,), (STATE,), (), (STATE,)]
    assert {operand.dtype for operand in operands} == {torch.float64}


def test_free_variables_are_fetched_from_the_function_at_hand():
    def make(weight):
        return lambda state, drive: torch.tanh(weight * state + drive)

    first, second = torch.rand(STATE, dtype=torch.float64), torch.rand(STATE, dtype=torch.float64)
    found = compiled(problem(make(first)))
    assert compiled(problem(make(second))) is found
    assert found.operands(problem(make(second)))[1] is second


def test_programs_that_are_equal_are_one_object():
    first = compiled(problem(lambda state, drive: torch.tanh(state + drive)))
    second = compiled(problem(lambda state, other: (state + other).tanh()))
    assert first.program is second.program


def test_obstacles_are_given_and_remembered():
    step = types.FunctionType((lambda state, drive: torch.flip(state, (-1,))).__code__, globals())
    found = compiled(problem(step))
    assert isinstance(found, tuple)
    assert "flip" in found[0]
    assert compiled(problem(step)) is found


def test_a_step_that_changes_what_it_reads_is_refused():
    class Counting(nn.Module):
        calls = 0

        def step(self, state, drive):
            self.calls += 1
            return torch.tanh(state + drive) * self.calls

    found = compiled(problem(Counting().step))
    assert isinstance(found, tuple)
    assert "pure function" in found[0]


def test_the_width_of_the_state_is_part_of_it():
    step = types.FunctionType((lambda state, drive: state * state.shape[-1] + F.silu(drive)).__code__, globals())
    assert compiled(problem(step)).program.key != compiled(problem(step, state=5)).program.key


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


def test_a_step_that_solves_inside_is_refused_without_waiting():
    def step(state, drive):
        found = compiled(problem(lambda inner, outer: torch.tanh(inner + outer), drive=torch.ones(2, 3, STATE, dtype=torch.float64)))
        assert isinstance(found, tuple)
        return torch.tanh(state + drive) * len(found)

    assert isinstance(compiled(problem(step)), Compiled)


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


def test_a_step_that_keeps_a_state_of_its_own_is_refused():
    class Remembering(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("before", torch.zeros(STATE, dtype=torch.float64))

        def step(self, state, drive):
            out = torch.tanh(state + drive + self.before)
            self.before = out[0] * 1.0
            return out

    found = compiled(problem(Remembering().step))
    assert isinstance(found, tuple)
    assert any("before" in obstacle and "pure function" in obstacle for obstacle in found)


def test_other_threads_see_nothing_of_a_trace():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(STATE, dtype=torch.float64))

        def step(self, state, drive):
            seen.append(type(others_have[0]._parameters["weight"]))
            return torch.tanh(self.weight * state + drive)

    seen: list[type] = []
    others_have = [Plain()]
    compiled(problem(others_have[0].step))
    assert seen
    assert set(seen) == {nn.Parameter}
