"""From the `step` that a user wrote in PyTorch to a program.

The step runs once on tensors without data, autograd takes its gradients once, and a dispatch mode (`recording`) writes down what happens to one
number. So whatever autograd does for a step, custom functions and `torch.no_grad` included, is what the program does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from pararnn.cell import Drive
from pararnn.compiler.guarding import CannotGoOnError, Guard
from pararnn.compiler.labels import MOST, Axes
from pararnn.compiler.numbers import Number
from pararnn.compiler.operands import Operands, differentiable, placed
from pararnn.compiler.places import Path, Place, Replaced, places
from pararnn.compiler.program import Expression, Operation, Program, Value
from pararnn.compiler.recording import Recorder
from pararnn.compiler.simplify import simplified, with_input
from pararnn.compiler.surroundings import in_a_thread, without_numbers
from pararnn.errors import CompilationError, sentence
from pararnn.solver import drive as drives

CARRIES = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float32, torch.float64: torch.float64}
# One step at a time: steps of several threads may share objects that are not copied.
_turn = threading.RLock()


@dataclass(frozen=True)
class Traced:
    """A program, and the names of the parameters that hold its operands after the leaves of the drive."""

    program: Program
    captured: tuple[str, ...]


def trace(
    step: Callable[[Tensor, Drive], Tensor],
    state: Tensor,
    drive: Drive,
    parameters: Mapping[str, Tensor],
    *,
    timed: Sequence[bool] | None = None,
) -> Traced:
    """The program of `step`.

    Args:
        step: the recurrence.
        state: `(1, state)`; what counts is its shape, dtype and device. No numbers are read of any tensor.
        drive: the drive of one step, leaves `(1, state)`, `(1, 1)`, `(state,)` or with one element; a leaf that is None is no operand. One that is a
            whole number of times as wide as the state, or `(1, parts, state)`, is several operands, and so is such a parameter.
        parameters: the tensors that `step` may read besides, by name; they are found as attributes of modules and as free variables.
        timed: which leaves run along the sequence; those with two dimensions if left out.

    Raises:
        CompilationError: the step mixes channels, or does what cannot be compiled; `obstacles` says all of it.
    """
    names = {id(tensor): name for name, tensor in reversed([*parameters.items()])}
    held = [place for place in places(step) if id(place.tensor) in names]
    traced, read = trace_places(step, state, drive, held, timed=timed)
    return Traced(traced, tuple(place.name if parameters.get(place.name) is place.tensor else names[id(place.tensor)] for place in read))


def trace_places(
    step: Callable[[Tensor, Drive], Tensor], state: Tensor, drive: Drive, held: Sequence[Place], *, timed: Sequence[bool] | None = None
) -> tuple[Program, tuple[Place, ...]]:
    """The program of `step`, and which of the places `held` hold its operands after the leaves of the drive; else as `trace`."""
    return in_a_thread(lambda: _traced(step, state, drive, held, timed))


def _traced(
    step: Callable[[Tensor, Drive], Tensor], state: Tensor, drive: Drive, held: Sequence[Place], timed: Sequence[bool] | None
) -> tuple[Program, tuple[Place, ...]]:
    carry = CARRIES.get(state.dtype)
    if carry is None:
        raise _refusal(step, (f"the states are {state.dtype}; kernels compute with real floating point numbers",))
    channels = state.shape[-1]
    axes = Axes.telling(channels)
    recorder = Recorder(axes, carry)
    with _turn, without_numbers():
        operands = Operands(state, axes.rows, recorder)
        costate, initial = operands.full("costate"), operands.full("state")
        leaves = list(drives.leaves(drive))
        runs = [leaf is not None and leaf.ndim == 2 for leaf in leaves] if timed is None else list(timed)
        standing: list[Tensor | None] = []
        for leaf, is_timed in zip(leaves, runs, strict=True):
            standing.append(None if leaf is None else operands.leaf(f"o{len([one for one in standing if one is not None])}", leaf, timed=is_timed))
        replacements = {place.path: operands.parameter(f"p{index}", place.tensor) for index, place in enumerate(held)}
        numbers = _run(step, initial, placed(drive, standing), costate, operands, recorder, replacements)
    captured = {f"p{index}": place for index, place in enumerate(held) if f"p{index}" in recorder.standing.read}
    for short, place in captured.items():
        if not operands.parts[short]:
            shape = tuple(place.tensor.shape)
            told = f"the step reads {place.name!r} of shape {shape}, where the state has {channels} channels"
            recorder.refuse(f"{told}: each may see one number, or up to {MOST} that lie side by side")
    if recorder.obstacles or numbers is None:
        raise _refusal(step, tuple(recorder.obstacles))
    order = [*(name for name in operands.tensors if name.startswith("o")), *captured]
    program = _program(order, operands, numbers, recorder.builder.operations)
    return program, tuple(captured.values())


def _refusal(step: Any, obstacles: tuple[str, ...]) -> CompilationError:
    name = getattr(step, "__qualname__", type(step).__name__)
    return CompilationError(f"{name} cannot be compiled: {'; '.join(obstacles)}", obstacles=obstacles)


def _run(
    step: Callable[[Tensor, Drive], Tensor],
    initial: Tensor,
    drive: Drive,
    costate: Tensor,
    operands: Operands,
    recorder: Recorder,
    replacements: Mapping[Path, Tensor],
) -> dict[str, Number] | None:
    """The next state and the gradients, by name of the operand; None where an obstacle ended the run."""
    if parametrize._cache_enabled:
        recorder.refuse("torch.nn.utils.parametrize.cached() is active, and what it caches would be what tracing left there")
        return None
    try:
        ready = Replaced(step, replacements)
        with recorder:
            with Guard(recorder.reads_numbers):
                value = ready.step(initial, drive)
            if changed := ready.changed():
                recorder.refuse(f"the step sets {', '.join(changed)} of its cell, and a kernel would not; it must be a pure function")
            if not isinstance(value, Tensor) or value.shape != initial.shape or value.dtype != initial.dtype:
                found = f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
                recorder.refuse(f"the step returns {found} for a state {tuple(initial.shape)} of {initial.dtype}, rows first")
                return None
            outcome = {"next": recorder.number(value)}
            if outcome["next"].summed:
                recorder.refuse(outcome["next"].origin)
            if recorder.obstacles:
                return None
            recorder.is_backward = True
            inputs = differentiable({name: tensor for name, tensor in operands.tensors.items() if name != "costate"})
            gradients = _gradients(value, inputs, costate)
            for name, gradient in gradients.items():
                outcome |= {} if gradient is None else operands.numbers(name, gradient)
            for name in outcome.keys() - {"next"}:
                if operands.sum_of(name, outcome[name]) is None and not recorder.obstacles:
                    recorder.refuse(f"the gradient by {name} is no sum of what single channels contribute")
    except CannotGoOnError:
        return None
    except Exception as error:
        recorder.refuse(f"the step fails on tensors without data: {sentence(error)}")
        return None
    return outcome


def _gradients(value: Tensor, inputs: Mapping[str, Tensor], costate: Tensor) -> dict[str, Tensor | None]:
    if not value.requires_grad:
        return {}
    found = torch.autograd.grad(value, tuple(inputs.values()), costate.detach(), allow_unused=True)
    return dict(zip(inputs, found, strict=True))


def _program(order: Sequence[str], operands: Operands, numbers: Mapping[str, Number], operations: Sequence[Operation]) -> Program:
    parts = tuple(len(operands.parts[name]) for name in order)
    order = [part for name in order for part in operands.parts[name]]
    names: dict[Value, str] = {name: f"o{index}" for index, name in enumerate(order)}

    def new(value: Value) -> Value:
        return names.get(value, value) if isinstance(value, str) else value

    renamed = tuple(Operation(one.result, one.primitive, tuple(map(new, one.arguments))) for one in operations)
    inputs = ("state", *names.values())
    following = _number(numbers["next"])
    pulled = tuple(new(operands.sum_of(name, numbers[name]) or 0.0) if name in numbers else 0.0 for name in ("state", *order))
    value = simplified(Expression(inputs, renamed, (new(following),)))
    pull = simplified(Expression(("costate", *inputs), renamed, pulled))
    advance = with_input(Expression(("costate", *inputs), renamed, (new(following), pulled[0])), "costate", 1.0)
    kinds = tuple(operands.kinds[name] for name in order)
    return Program(kinds=kinds, value=value, advance=advance, pull=pull, parts=parts if max(parts, default=1) > 1 else ())


def _number(number: Number) -> Value:
    return 0.0 if number.value is None else number.value
