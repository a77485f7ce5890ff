"""The continuous adjoint: the gradient as the solution of another equation, which runs back in time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pararnn.errors import DifferentiationError
from pararnn.transforms import inside_transform
from pararnn_nanode.fields.base import Field, Weights
from pararnn_nanode.integrate.alone import Alone
from pararnn_nanode.integrate.controller import Controller
from pararnn_nanode.integrate.dense_output import collect
from pararnn_nanode.integrate.dopri5 import PAIRS
from pararnn_nanode.integrate.outside import refuse_outsiders
from pararnn_nanode.integrate.steps import Cost, Inputs, Problem, Watch, walk

Parts = tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class Backward:
    """How the adjoint equation is integrated.

    Attributes:
        controller: its tolerances and steps; its `norm` is not used.
        method: a name of `PAIRS`.
        norm: of the quotients of error and tolerance of `(time, state, adjoint, *gradients of parameters)`.
    """

    controller: Controller
    method: str
    norm: Callable[[Parts], Tensor]


@dataclass(frozen=True, kw_only=True)
class _Work:
    problem: Problem
    times: Sequence[float]
    controller: Controller
    backward: Backward
    cost: Cost
    watch: Watch | None
    names: tuple[str, ...]
    outside: Parts
    moves: bool


def adjoint(
    problem: Problem,
    x: Tensor,
    times: Sequence[float],
    given: Tensor,
    *,
    controller: Controller,
    cost: Cost,
    backward: Backward,
    outside: Parts = (),
    watch: Watch | None = None,
) -> Tensor:
    """States `(times, *state)`, of which a backward pass keeps nothing else.

    Args:
        times: as numbers; `given` are those that gradients are asked for, which differ from them for an equation that is stretched.

    Raises:
        DifferentiationError: the field depends on tensors that are neither its parameters nor `outside`.
    """
    if inside_transform():
        raise DifferentiationError("gradient='adjoint' does not go through the transforms of torch.func; use gradient='backprop'")
    named = {name: parameter for name, parameter in problem.field.named_parameters() if parameter.requires_grad}
    moves = problem.lift is not None
    outside = tuple(tensor for tensor in (*outside, *(() if moves else (given,))) if tensor.requires_grad)
    problem = dataclasses.replace(problem, lift=None)
    refuse_outsiders(problem, x, times, (*named.values(), *outside))
    cost.nfe += 1
    work = _Work(
        problem=problem,
        times=times,
        controller=controller,
        backward=backward,
        cost=cost,
        watch=watch,
        names=tuple(named),
        outside=outside,
        moves=moves,
    )
    states: Tensor = _Adjoint.apply(work, x, given, *named.values(), *outside)
    return states


class _Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, work: _Work, x: Tensor, given: Tensor, *tensors: Tensor) -> Tensor:
        alone = dataclasses.replace(work.problem, field=Alone(work.problem.field))
        steps = walk(alone, x.detach(), work.times[0], work.times[-1], controller=work.controller, cost=work.cost, watch=work.watch)
        states = collect(work.problem.pair, steps, x.detach(), work.times)
        ctx.work = work
        ctx.save_for_backward(states, *tensors)
        return states

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise DifferentiationError(
                "gradient='adjoint' has no second derivative; use gradient='backprop' or 'checkpoint', which have, or leave create_graph out"
            )
        work: _Work = ctx.work
        states, *tensors = ctx.saved_tensors
        count = len(work.names)
        run = _Run(work, states, grads[0], tuple(tensors[:count]))
        held = {f"work_field.{name}": tensor for name, tensor in zip(work.names, tensors, strict=False)}
        start, moved, found = torch.func.functional_call(run, held, ())
        return (None, start, moved, *found)


class _Run(nn.Module):
    """The pass back in time, as a module, so that it can run with the parameters that the forward pass had."""

    def __init__(self, work: _Work, states: Tensor, grad: Tensor, parameters: Parts) -> None:
        super().__init__()
        self.work_field = work.problem.field
        self.work = work
        self.states = states
        self.grad = grad
        self.tensors = (*parameters, *work.outside)

    def forward(self) -> tuple[Tensor, Tensor | None, Parts]:
        work, states, grad = self.work, self.states, self.grad
        problem, times = work.problem, work.times
        inner = _Augmented(problem.field, problem.inputs, states[-1], self.tensors)
        norm = work.backward.norm
        controller = dataclasses.replace(work.backward.controller, norm=lambda flat: norm((flat.new_zeros(()).abs(), *inner.split(flat))))
        outer = dataclasses.replace(problem, field=inner, pair=PAIRS[work.backward.method], inputs=None)
        alone = dataclasses.replace(problem, field=Alone(problem.field))
        parts: Parts = (states[-1], grad[-1], *(torch.zeros_like(tensor) for tensor in self.tensors))
        moved = [states.new_zeros((), dtype=torch.float64)] * len(times)

        def push(index: int, adjoint: Tensor) -> Tensor:
            ahead = times[min(index + 1, len(times) - 1)] if index == 0 else times[index - 1]
            slope = alone.slope(states[index], times[index], min(times[index], ahead))
            return (slope.conj() * adjoint).sum().real.double()

        for index in range(len(times) - 1, 0, -1):
            if work.moves:
                moved[index] = push(index, grad[index])
            if times[index] != times[index - 1]:
                flat = inner.join(parts)
                for step in walk(outer, flat, times[index], times[index - 1], controller=controller, cost=Cost()):
                    flat = step.end
                parts = inner.split(flat)
            parts = (states[index - 1], parts[1] if index == 1 else parts[1] + grad[index - 1], *parts[2:])
        if not work.moves:
            return parts[1] + grad[0] if len(times) > 1 else parts[1], None, parts[2:]
        moved[0] = -push(0, parts[1])
        return parts[1] + grad[0], torch.stack(moved), parts[2:]


class _Augmented(Field):
    """State, adjoint and the gradients of `tensors`, in one vector."""

    def __init__(self, field: Field, inputs: Inputs | None, state: Tensor, tensors: Parts) -> None:
        super().__init__()
        self.field = field
        self.inputs = inputs
        self.tensors = tensors
        likes = (state, state, *tensors)
        self.layout = [(like.shape, like.dtype, like.numel()) for like in likes]
        self.dtype = state.dtype
        for tensor in tensors:
            self.dtype = torch.promote_types(self.dtype, tensor.dtype)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """One vector."""
        return torch.cat([part.reshape(-1).to(self.dtype) for part in parts])

    def split(self, flat: Tensor) -> Parts:
        """State, adjoint and gradients; real parts where only those exist."""
        pieces = flat.split([size for _, _, size in self.layout])
        found = []
        for piece, (shape, dtype, _) in zip(pieces, self.layout, strict=True):
            real = piece.is_complex() and not dtype.is_complex
            found.append((piece.real if real else piece).to(dtype).view(shape))
        return tuple(found)

    def weights(self, times: Tensor, anchors: Tensor | None = None, u: Tensor | None = None) -> Weights:
        return (times, times if anchors is None else anchors)

    def evaluate(self, x: Tensor, weights: Weights) -> Tensor:
        time, anchor = weights
        state, adjoint, *_ = self.split(x)
        with torch.enable_grad():
            state = state.detach().requires_grad_()
            inputs = None if self.inputs is None else self.inputs(time)
            slope = self.field.evaluate(state, self.field.weights(time, anchor, inputs))
            grads: Sequence[Tensor | None] = [None] * (1 + len(self.tensors))
            if slope.requires_grad:
                # The graph of tensors outside of the field is needed in every evaluation.
                grads = torch.autograd.grad(slope, (state, *self.tensors), adjoint.to(slope.dtype), allow_unused=True, retain_graph=True)
        zeros = (torch.zeros(shape, dtype=dtype, device=x.device) for shape, dtype, _ in self.layout[1:])
        return self.join((slope.detach(), *(zero if grad is None else -grad for grad, zero in zip(grads, zeros, strict=True))))
