"""Programs are found by the identity of a step, and their operands fetched anew at each solve; steps that are no pure functions have none."""

import types

import torch
from posed_steps import STATE, problem, values
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from pararnn.compiler.catalogue import Compiled, compiled, forget

WEIGHT = torch.full((STATE,), 0.3, dtype=torch.float64)


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


def test_a_step_that_solves_inside_is_refused_without_waiting():
    def step(state, drive):
        found = compiled(problem(lambda inner, outer: torch.tanh(inner + outer), drive=torch.ones(2, 3, STATE, dtype=torch.float64)))
        assert isinstance(found, tuple)
        return torch.tanh(state + drive) * len(found)

    assert isinstance(compiled(problem(step)), Compiled)


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
