"""What functions bring along is part of the identity of a step: defaults, free variables, arguments given beforehand, derivatives."""

import functools

import torch
from posed_steps import identity, problem

from pararnn.compiler.catalogue import Compiled, compiled


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


def times(factor, x):
    return factor * x


def test_arguments_that_a_function_was_given_beforehand_are_part_of_it():
    def of(factor):
        return identity(functools.partial(by_a_function, functools.partial(times, factor)))

    assert of(0.3) == of(0.3)
    assert of(0.3) != of(0.8)


def by_a_function(function, state, drive):
    return torch.tanh(function(state) + drive)


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
