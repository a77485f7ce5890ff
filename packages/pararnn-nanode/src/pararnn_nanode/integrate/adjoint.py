"""The gradient of the continuous problem: the adjoint equation is integrated backwards beside the state, with the method of the forward pass.

It is not the derivative of the numbers computed: the two differ by the error of the method, 11 % for Euler at ten steps of a small network.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import ConfigError, DifferentiationError
from pararnn.transforms import inside_transform
from pararnn_nanode.errors import InexactGradientWarning
from pararnn_nanode.integrate.cotangents import Block, Gradients
from pararnn_nanode.integrate.deferred import STARTS, WIDTHS, Deferred, deferred
from pararnn_nanode.integrate.methods import Method, Width
from pararnn_nanode.integrate.reads import Reads, between
from pararnn_nanode.integrate.runge_kutta import RungeKutta, combine
from pararnn_nanode.integrate.walk import BLOCK, Walk, walk_in_blocks


def adjoint(walk: Walk, x: Tensor) -> Tensor:
    """States at the asked times, which are all that is kept.

    Raises:
        ConfigError: the method is no explicit Runge-Kutta method.
        DifferentiationError: inside a transform of `torch.func`, and for second derivatives.
    """
    if not isinstance(walk.method, RungeKutta):
        advice = "gradient='reversible' gives its exact gradient" if walk.method.reversible else "use gradient='checkpoint'"
        raise ConfigError(f"gradient='adjoint' integrates back with a Runge-Kutta method, and {walk.method.name} is none; {advice}")
    if torch.compiler.is_compiling():
        from pararnn_nanode.integrate.untraced import outside_the_graph

        untraced: Tensor = outside_the_graph(adjoint, walk, x)
        return untraced
    if inside_transform():
        raise DifferentiationError("gradient='adjoint' cannot be transformed by torch.func; use gradient='backprop' or 'checkpoint'")
    if walk.method.order == 1 and torch.is_grad_enabled():
        warnings.warn(
            f"gradient='adjoint' with {walk.method.name} is not the derivative of what it computes (27 % off at 4 steps, 11 % at 10, 3 % at 40 on a "
            "small network), so a loss may rise along it; use gradient='checkpoint', or method='rk4'",
            InexactGradientWarning,
            stacklevel=2,
        )
    turned = replace(walk.reads, times=torch.stack([between(*_ends(walk), 1 - node) for node in walk.method.nodes], dim=1))
    plan, inputs = deferred(replace(walk, reads=turned), x)
    states: Tensor = _Adjoint.apply(plan, walk.reads, *inputs)
    return states


def _ends(walk: Walk) -> tuple[Tensor, Tensor]:
    knots = walk.schedule.knots.to(walk.reads.times.device)
    return knots[:-1], knots[1:]


class _Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Deferred, reads: Reads, *inputs: Tensor | None) -> Tensor:
        ahead = replace(reads, times=reads.times.detach(), starts=reads.starts.detach())
        states, state = plan.forwards(lambda walk, x: walk_in_blocks(replace(walk, reads=ahead), x), inputs, "adjoint")
        ctx.plan = plan
        ctx.save_for_backward(*inputs, states, state[0])
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise DifferentiationError("gradient='adjoint' has no second derivative; use gradient='backprop' or 'checkpoint' for create_graph=True")
        plan: Deferred = ctx.plan
        *inputs, states, last = ctx.saved_tensors
        needed = ctx.needs_input_grad[2:]
        variables = plan.variables(inputs, needed)
        found = plan.backwards(lambda: _backwards(plan, variables, needed, (*states.unbind(0), last), grad), variables)
        return None, None, *found


def _backwards(
    plan: Deferred, variables: Sequence[Tensor | None], needed: Sequence[bool], states: tuple[Tensor, ...], grad: Tensor
) -> list[Tensor | None]:
    """The solution of the adjoint equation at the start, and the integrals of its products with the derivatives by all else."""
    walk, method = plan.walk_with(variables), plan.walk.method
    asked = [k for k, need in enumerate(needed) if need and k not in (0, STARTS, WIDTHS)]
    gradients = Gradients([tensor for k in asked if (tensor := variables[k]) is not None])
    widths = [width.detach() if isinstance(width, Tensor) else width for width in walk.widths]
    by_widths: list[Tensor] = []
    at: dict[int, tuple[Tensor, Tensor]] = {}
    for knot, state, part in zip(walk.schedule.outputs, states, grad, strict=False):
        at[knot] = (state, at[knot][1] + part if knot in at else part)
    x, by_x = states[-1], torch.zeros_like(states[-1])
    for end in range(walk.steps, 0, -BLOCK):
        first = max(0, end - BLOCK)
        with torch.enable_grad():
            leaves = walk.reads.weights(walk.field, first, end, walk.u)
        block = Block(walk.field, leaves, gradients)
        for k in reversed(range(first, end)):
            if k + 1 in at:
                # Where the state is known, what the walk back has gathered of errors is dropped.
                x, part = at[k + 1]
                by_x = by_x + part
            x, by_x, product = _step_back(method, block, (k - first) * len(method.nodes), x, by_x, widths[k])
            if needed[WIDTHS]:
                by_widths.append(_summed(product, widths[k]))
        block.push()
    found: dict[int, Tensor | None] = dict(zip(asked, gradients.sums, strict=True))
    found[0] = by_x + at[0][1] if 0 in at else by_x
    found[WIDTHS] = torch.stack(by_widths[::-1]) if by_widths else None
    return [found.get(k) if need else None for k, need in enumerate(needed)]


def _step_back(method: Method, block: Block, read: int, x: Tensor, by_x: Tensor, h: Width) -> tuple[Tensor, Tensor, Tensor]:
    """State and adjoint a step of length `h` earlier, and the integral over the step of their product with the field, divided by `h`."""
    if not isinstance(method, RungeKutta):
        raise ConfigError(f"{method.name} is no Runge-Kutta method")
    slopes: list[Tensor] = []
    falls: list[Tensor] = []
    product = torch.zeros_like(x)
    for row, share, node in zip(((), *method.stages), method.combination, method.reads, strict=True):
        point, costate = combine(x, slopes, row, -h), combine(by_x, falls, row, -h)
        slope, pull = block.evaluate(read + node, point)
        slopes.append(slope)
        falls.append(-pull(costate, h * share))
        product = product + share * slope.conj() * costate
    return combine(x, slopes, method.combination, -h), combine(by_x, falls, method.combination, -h), product


def _summed(product: Tensor, width: Width) -> Tensor:
    real = product.real if product.is_complex() else product
    return real.sum_to_size(width.shape) if isinstance(width, Tensor) else real.sum()
