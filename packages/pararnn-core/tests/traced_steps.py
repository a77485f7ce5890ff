"""Traced programs held to what autograd does with the step itself."""

import torch

from pararnn.compiler import reference
from pararnn.compiler.tracing import trace

ROWS, TIME, STATE = 3, 4, 4
SHAPES = {"element": (ROWS, TIME, STATE), "step": (ROWS, TIME, 1), "channel": (STATE,), "scalar": ()}


def tensors(*kinds, seed=0, low=-2.0, high=2.0, dtype=torch.float64):
    """Random operands of those kinds, that want gradients."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.rand(SHAPES[kind], generator=generator, dtype=torch.float64) * (high - low) + low for kind in kinds]
    return [tensor.to(dtype).requires_grad_() for tensor in drawn]


def at(leaf, time):
    return leaf[:, time] if leaf.ndim == 3 else leaf


def program_of(step, leaves, parameters=None, dtype=torch.float64, state=STATE):
    """The program of `step(state, *leaves)`, and the names of what it captured."""
    one = tuple(at(leaf.detach()[:1] if leaf.ndim == 3 else leaf.detach(), 0) for leaf in leaves)
    traced = trace(step, torch.zeros(1, state, dtype=dtype), one, parameters or {})
    return traced.program, traced.captured


def assert_program_is_the_step(step, leaves, parameters=None, *, seed=1, dtype=torch.float64, **tolerance):
    """States and all gradients of the program equal those of the loop over `step(state, leaves)`."""
    parameters = parameters or {}
    program, captured = program_of(step, leaves, parameters, dtype)
    operands = [*leaves, *(parameters[name] for name in captured)]
    initial = torch.rand(ROWS, STATE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype).requires_grad_()
    state, states = initial, []
    for time in range(TIME):
        state = step(state, tuple(at(leaf, time) for leaf in leaves))
        states.append(state)
    expected = torch.stack(states, 1)
    grad = torch.cos(torch.arange(expected.numel(), dtype=torch.float64)).reshape(expected.shape).to(dtype)
    wanted = [operand for operand in (*operands, initial) if operand.requires_grad]
    gradients = torch.autograd.grad(expected, wanted, grad, allow_unused=True) if expected.requires_grad else [None] * len(wanted)
    walked = reference.walk(program, operands, initial)
    torch.testing.assert_close(walked, expected.detach(), equal_nan=True, **tolerance)
    found = reference.backward(program, grad, expected.detach(), operands, initial)
    found = [gradient for gradient, operand in zip(found, (*operands, initial), strict=True) if operand.requires_grad]
    for mine, theirs in zip(found, gradients, strict=True):
        torch.testing.assert_close(mine, torch.zeros_like(mine) if theirs is None else theirs, equal_nan=True, **tolerance)
    _assert_advance_is_value_and_slope(program, operands, initial)
    return program


def _assert_advance_is_value_and_slope(program, operands, initial):
    first = [at(operand.detach(), 0) for operand in operands]
    state = initial.detach()
    value, slope = reference.evaluate(program.advance, state, *[one.to(state.dtype) for one in first])
    (alone,) = reference.evaluate(program.value, state, *[one.to(state.dtype) for one in first])
    pulled = reference.evaluate(program.pull, torch.ones_like(state), state, *[one.to(state.dtype) for one in first])[0]
    torch.testing.assert_close(value, alone, equal_nan=True)
    torch.testing.assert_close(slope, pulled, equal_nan=True)
