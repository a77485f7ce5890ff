"""Exact gradients of a solved trajectory, by one scan backwards in time.

At the solution, `lam[t] = g[t] + J[t+1]^H lam[t+1]` is linear. So the step is evaluated once more, for all times at once and on the graph, at the
states before each step taken as constants; its output passes through a node that is the identity forwards and the reverse scan backwards.
Autograd carries `lam` from there to the drive and to every parameter that `step` touches, wherever it comes from: nothing is looked up by name.

The Jacobians are taken when the states are: a weight that is edited before the backward pass is noticed by autograd as ever.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import DifferentiationError
from pararnn.scans.dispatch import structure_at, structure_path
from pararnn.scans.edges import fold, shift, unfold
from pararnn.scans.op import differentiable_scan, initial_cotangent, reverse_scan
from pararnn.solver.problem import Problem
from pararnn.solver.quasi import settle_costate
from pararnn.structures.base import Structure
from pararnn.transforms import refuse_nested_jvp


def before_each_step(problem: Problem, states: Tensor) -> Tensor:
    """The state that each step starts from, a constant `(rows, time, state)`."""
    return shift(states.detach(), problem.initial.detach(), problem.offsets, reverse=False)


def attach(problem: Problem, previous: Tensor, *, scan_backend: str, derivatives: str) -> Tensor:
    """The states of a solved problem, differentiable by drive, initial state and parameters, from those `previous` to each step.

    With `derivatives="twice"`, second derivatives are exact too: the step is evaluated at states that are already differentiable, and one Newton
    correction, whose value is zero, carries their second-order part. Each further derivative raises `DifferentiationError`.
    """
    value, jacobian = problem.value_and_constant_jacobian(previous)
    offsets = None if problem.offsets is None else torch.tensor(problem.offsets, device=value.device)
    if problem.exact:
        path = structure_path(type(jacobian))
        attached: Tensor = _Attach.apply(path, scan_backend, offsets, value, problem.initial, *jacobian.leaves())
    else:
        # The costate that is settled is cut from the graph, so what it goes on to is limited as well.
        limited = limit_derivatives(value, value, problem.initial, order=1)
        start = limit_derivatives(problem.initial, value, problem.initial, order=1)
        attached = settle_costate(replace(problem, initial=start), limited, jacobian, offsets, previous, scan_backend)
    if derivatives == "once" or not problem.exact:
        return limit_derivatives(attached, value, problem.initial, order=1)
    again, jacobian = problem.value_and_constant_jacobian(shift(attached, problem.initial, problem.offsets, reverse=False))
    correction = differentiable_scan(jacobian, again - attached, None, offsets, reverse=False, backend=scan_backend)
    return limit_derivatives(attached + correction, value, problem.initial, order=2)


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(path: str, backend: str, offsets: Tensor | None, value: Tensor, initial: Tensor, *leaves: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.path, ctx.backend, offsets, value, initial, *leaves = inputs
        ctx.save_for_backward(offsets, value, initial, *leaves)
        ctx.save_for_forward(offsets, value, initial, *leaves)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        offsets, _, initial, *leaves = ctx.saved_tensors
        jacobian: Structure = structure_at(ctx.path).from_leaves(*leaves)
        costate = reverse_scan(jacobian, grad, offsets, reverse=False, backend=ctx.backend)
        start = initial_cotangent(jacobian, costate, initial, offsets, reverse=False) if ctx.needs_input_grad[4] else None
        return None, None, None, costate, start, *(None for _ in leaves)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        refuse_nested_jvp()
        value_tangent, initial_tangent = tangents[3:5]
        offsets, value, _, *leaves = ctx.saved_tensors
        jacobian = structure_at(ctx.path).from_leaves(*leaves)
        term = torch.zeros_like(value) if value_tangent is None else value_tangent
        return differentiable_scan(jacobian, term, initial_tangent, offsets, reverse=False, backend=ctx.backend)

    @staticmethod
    def vmap(info: Any, in_dims: Any, path: str, backend: str, offsets: Tensor | None, *tensors: Tensor) -> tuple[Tensor, int]:
        folded = (fold(tensor, dim, info.batch_size) for tensor, dim in zip(tensors, in_dims[3:], strict=True))
        return unfold(_Attach.apply(path, backend, offsets, *folded), info.batch_size), 0


ADVICE = "NewtonConfig(derivatives='twice') gives second derivatives, solver='sequential' any order"


def limit_derivatives(states: Tensor, *sources: Tensor, order: int, derived: bool = False, advice: str = ADVICE) -> Tensor:
    """`states`, which can be differentiated `order` times by what `sources` depend on; once more raises `DifferentiationError`.

    `derived` says that `states` are themselves a derivative, which depends on the sources in more ways than through this node; `advice` is what the
    error says to do.
    """
    limited: Tensor = _Limit.apply(order, derived, advice, states, *sources)
    return limited


def _spend(order: int, advice: str, derivative: Tensor, sources: tuple[Tensor, ...]) -> Tensor:
    """A derivative, which can be taken `order - 1` times more."""
    if order == 0:
        raise DifferentiationError(
            f"a parallel solve was differentiated more often than it was attached for, which would leave out how the states themselves move; {advice}"
        )
    # Whatever is differentiated again depends on a source, so a refusing node lies on the way of every such request.
    return limit_derivatives(derivative, *sources, order=order - 1, derived=True, advice=advice)


class _Limit(torch.autograd.Function):
    @staticmethod
    def forward(order: int, derived: bool, advice: str, states: Tensor, *sources: Tensor) -> Tensor:
        return states.view_as(states)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.order, ctx.derived, ctx.advice, _, *sources = inputs
        ctx.save_for_backward(*sources)
        ctx.save_for_forward(*sources)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        sources = ctx.saved_tensors
        if ctx.order > 0 and not torch.is_grad_enabled():
            return None, None, None, grad, *(None for _ in sources)
        # A second derivative reaches the sources past this node too; a limited zero goes to them along with it, so that it counts as one.
        zeros = (_spend(ctx.order, ctx.advice, torch.zeros_like(source), sources) if ctx.derived else None for source in sources)
        return None, None, None, _spend(ctx.order, ctx.advice, grad, sources), *zeros

    @staticmethod
    def jvp(ctx: Any, _order: None, _derived: None, _advice: None, states: Tensor | None, *_sources: Any) -> Tensor | None:
        refuse_nested_jvp()
        return None if states is None else _spend(ctx.order, ctx.advice, states, ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: Any, order: int, derived: bool, advice: str, states: Tensor, *sources: Tensor) -> tuple[Tensor, int | None]:
        # The identity maps nothing; only its dependence on the sources counts.
        # Contiguous, because forward mode writes tangents into the memory of the result, and a summed loss hands over one number for all.
        return limit_derivatives(states.contiguous(), *sources, order=order, derived=derived, advice=advice), in_dims[3]
