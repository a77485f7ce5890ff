"""The continuous adjoint: the gradient as the solution of another equation, which runs back in time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import DifferentiationError
from pararnn.transforms import inside_transform
from pararnn_nanode.integrate.alone import Alone
from pararnn_nanode.integrate.augmented import Augmented, Parts
from pararnn_nanode.integrate.capture import Capture
from pararnn_nanode.integrate.controller import Controller
from pararnn_nanode.integrate.declared import own_shares, unheard
from pararnn_nanode.integrate.dense_output import collect
from pararnn_nanode.integrate.dopri5 import PAIRS
from pararnn_nanode.integrate.outside import Guarded
from pararnn_nanode.integrate.pieces import beside
from pararnn_nanode.integrate.steps import Cost, Problem, Watch, walk


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
    """What both passes need.

    Attributes:
        capture: parameters and buffers of the field, inputs `u` and times of samples among the latter.
        declared: tensors outside of the field, each once.
        moves: whether gradients are asked for times that all samples share.
    """

    problem: Problem
    times: Sequence[float]
    controller: Controller
    backward: Backward
    cost: Cost
    watch: Watch | None
    capture: Capture
    declared: Parts
    moves: bool

    @property
    def held(self) -> dict[str, Tensor]:
        """The tensors of the field that may have gradients. Other buffers may be statistics, which any pass may update."""
        return {**self.capture.parameters, **{name: buffer for name, buffer in self.capture.buffers.items() if buffer.requires_grad}}


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
        times: as numbers; `given` are those that gradients are asked for where the problem has a lift.
        outside: tensors that the field reads without holding them.

    Raises:
        DifferentiationError: the field depends on tensors that it neither holds nor finds in `outside`.
    """
    if inside_transform():
        raise DifferentiationError("gradient='adjoint' does not go through the transforms of torch.func; use gradient='backprop'")
    work = _Work(
        problem=dataclasses.replace(problem, lift=None),
        times=times,
        controller=controller,
        backward=backward,
        cost=cost,
        watch=watch,
        capture=Capture.of(problem.field),
        declared=tuple(tensor for tensor in outside if tensor.requires_grad),
        moves=problem.lift is not None,
    )
    states: Tensor = _Adjoint.apply(work, x, given, *work.held.values(), *work.declared)
    return states


class _Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, work: _Work, x: Tensor, given: Tensor, *tensors: Tensor) -> Tensor:
        def run() -> Tensor:
            guarded = dataclasses.replace(work.problem, field=Guarded(work.problem.field, work.declared))
            steps = walk(guarded, x.detach(), work.times[0], work.times[-1], controller=work.controller, cost=work.cost, watch=work.watch)
            return collect(work.problem.pair, steps, x.detach(), work.times)

        # What the field holds is cut from the graph, so that a slope with a gradient betrays what it does not.
        states = work.capture.run(run, parameters={name: tensor.detach() for name, tensor in work.held.items()})
        work.capture.seal()
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
        work.capture.check_unchanged()
        states, *tensors = ctx.saved_tensors
        own = len(work.held)
        # Aliases: one tensor may have been computed from another, and hooks are for whole gradients.
        aliases = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors[:own]]
        wanted = [*(alias for alias in aliases if alias.requires_grad), *work.declared]
        names = dict(zip(work.held, aliases, strict=True))
        with unheard(work.declared):
            start, moved, found = work.capture.run_again(_back, work, states, grads[0], tuple(wanted), parameters=names)
            count = len(found) - len(work.declared)
            shares = own_shares(work.declared, found[count:])
        parts = iter(found[:count])
        return (None, start, moved, *(next(parts) if alias.requires_grad else None for alias in aliases), *shares)


def _back(work: _Work, states: Tensor, grad: Tensor, tensors: Parts) -> tuple[Tensor, Tensor | None, Parts]:
    """Gradients of the start, of the times where those move, and of `tensors`."""
    problem, times = work.problem, work.times
    inner = Augmented(problem.field, states[-1], tensors)
    norm = work.backward.norm
    controller = dataclasses.replace(work.backward.controller, norm=lambda flat: norm((flat.new_zeros(()).abs(), *inner.split(flat))))
    outer = dataclasses.replace(problem, field=inner, pair=PAIRS[work.backward.method])
    alone = dataclasses.replace(problem, field=Alone(problem.field))
    parts: Parts = (states[-1], grad[-1], *(torch.zeros_like(tensor) for tensor in tensors))
    moved = [states.new_zeros((), dtype=torch.float64)] * len(times)

    def push(index: int, other: float, adjoint: Tensor) -> Tensor:
        slope = alone.slope(states[index], times[index], beside(times[index], other, problem.jumps))
        return (slope.conj() * adjoint).sum().real.double()

    for index in range(len(times) - 1, 0, -1):
        if work.moves:
            # The step that ends there comes from the last time before that is another one; of the first time itself, the step that starts there.
            before = next((time for time in reversed(times[:index]) if time != times[index]), times[-1])
            moved[index] = push(index, before, grad[index])
        if times[index] != times[index - 1]:
            flat = inner.join(parts)
            for step in walk(outer, flat, times[index], times[index - 1], controller=controller, cost=Cost()):
                flat = step.end
            parts = inner.split(flat)
        parts = (states[index - 1], parts[1] if index == 1 else parts[1] + grad[index - 1], *parts[2:])
    if not work.moves:
        return parts[1] + grad[0] if len(times) > 1 else parts[1], None, parts[2:]
    after = next((time for time in times if time != times[0]), times[0])
    moved[0] = -push(0, after, parts[1])
    return parts[1] + grad[0], torch.stack(moved), parts[2:]
