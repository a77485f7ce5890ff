"""Steps posed as problems: the identity of each, and what the program that was found for it gives."""

import types

import torch

from pararnn.compiler.identity import StepIdentity
from pararnn.solver.problem import Problem
from pararnn.structures import Diagonal

STATE = 4


def problem(step, *, drive=None, dtype=torch.float64, state=STATE):
    drive = torch.rand(2, 3, state, dtype=dtype) if drive is None else drive
    return Problem(step=step, structure=Diagonal, drive=drive, initial=torch.zeros(2, 1, state, dtype=dtype), cell=getattr(step, "__self__", step))


def identity(step, **facts):
    return StepIdentity.of(problem(step, **facts))


def assert_changes(cell, change, step=None):
    step = cell.step if step is None else step
    before = identity(step)
    assert before == identity(step)
    change(cell)
    after = identity(cell.step if isinstance(step, types.MethodType) else step)
    assert before != after
    assert after == identity(cell.step if isinstance(step, types.MethodType) else step)


def values(step, state, drive, found):
    """What the program of `found` gives for a state and the drive of one step."""
    from pararnn.compiler.reference import walk

    posed = problem(step, drive=drive.unsqueeze(1))
    return walk(found.program, found.operands(posed), state)[:, 0]
