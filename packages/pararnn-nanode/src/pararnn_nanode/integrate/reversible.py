"""Exact gradients at a memory that does not depend on the steps: the walk is undone step by step, each with one evaluation.

Weights are built in blocks of steps, forwards and backwards. A walk that cannot be undone within rounding raises; it never gives a wrong gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import ConfigError, DifferentiationError
from pararnn.transforms import inside_transform
from pararnn_nanode.errors import NotReversibleError
from pararnn_nanode.integrate.cotangents import Block, Gradients, Pullback
from pararnn_nanode.integrate.deferred import WIDTHS, Deferred, deferred
from pararnn_nanode.integrate.methods import State, Width
from pararnn_nanode.integrate.reads import rows
from pararnn_nanode.integrate.stability import Measured, advice, of_sample, parted, relative
from pararnn_nanode.integrate.undoing import ReversibleMethod
from pararnn_nanode.integrate.walk import BLOCK, Walk, backprop, hidden, walk_in_blocks

KEPT = 4
"""Tensors kept for the walk back, beside the inputs."""
NOISE = 32
"""Roundings that add up on a walk there and back."""
TRIALS = 4
"""Changes of the state by which the effect of its rounding is estimated."""


def reversible(walk: Walk, x: Tensor) -> Tensor:
    """States at the asked times; nothing is kept but them and the last state of the method.

    Under a transform of `torch.func` every step stays on the graph, and a second derivative walks again with every step on the graph.

    Raises:
        ConfigError: the method cannot be undone.
        NotReversibleError: the walk is unstable, or (in a backward pass) could not be undone.
    """
    if not walk.method.reversible:
        raise ConfigError(
            f"gradient='reversible' needs a method that can be undone, reversible_heun or alf (undamped), not {walk.method.name}; "
            "gradient='checkpoint' serves every method with little memory"
        )
    if torch.compiler.is_compiling():
        from pararnn_nanode.integrate.untraced import outside_the_graph

        untraced: Tensor = outside_the_graph(reversible, walk, x)
        return untraced
    if inside_transform():
        if walk.report is not None:
            walk.report.reason = "Inside a torch.func transform every step stays on the graph."
        return backprop(walk, x)
    plan, inputs = deferred(walk, x)
    states: Tensor = _Reversible.apply(plan, *inputs)
    return states


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Deferred, *inputs: Tensor | None) -> Tensor:
        states, kept = plan.forwards(_forwards, inputs, "reversible")
        ctx.plan = plan
        ctx.save_for_backward(*inputs, *kept)
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        plan: Deferred = ctx.plan
        saved, needed = ctx.saved_tensors, ctx.needs_input_grad[1:]
        inputs, kept = saved[:-KEPT], saved[-KEPT:]
        if torch.is_grad_enabled():
            return None, *plan.again(backprop, inputs, needed, grad)
        variables = plan.variables(inputs, needed)
        return None, *plan.backwards(lambda: _backwards(plan, variables, needed, kept, grad), variables)


def _forwards(walk: Walk, x: Tensor) -> tuple[Tensor, State]:
    """States at the asked times, and what is kept: two tensors from which the walk can be undone, and the sizes of elements and samples at first."""
    measured = Measured(walk.method, x, walk.steps)
    states, state = walk_in_blocks(replace(walk, method=measured), x)
    measured.look()
    # What an unstable method carries grows from step to step; in a few coarse ones it is honestly of the size of the state.
    if walk.steps > BLOCK and not hidden(x):
        ratio = float(parted(walk.method, state, walk.widths[-1], measured.path))
        if ratio > 1:
            raise NotReversibleError(f"{advice(walk.method, ratio)}; take gradient='checkpoint' with another method", drift=ratio, allowed=1.0)
    start = of_sample(measured.early) if x.numel() else measured.early
    return states, (*state[:2], torch.minimum(measured.path, start), start)


def _backwards(plan: Deferred, variables: Sequence[Tensor | None], needed: Sequence[bool], kept: State, grad: Tensor) -> list[Tensor | None]:
    """The derivative of the loss by every needed input."""
    walk, method = plan.walk_with(variables), plan.walk.method
    if not isinstance(method, ReversibleMethod):
        raise DifferentiationError(f"{method.name} says that it is reversible but has no way to undo a step; derive it from ReversibleMethod")
    asked = [k for k, need in enumerate(needed) if need and k not in (0, WIDTHS)]
    gradients = Gradients([tensor for k in asked if (tensor := variables[k]) is not None])
    widths = [width.detach() if isinstance(width, Tensor) else width for width in walk.widths]
    by_widths = [torch.zeros_like(width) for width in widths if isinstance(width, Tensor)] if needed[WIDTHS] else None
    by_state: dict[int, Tensor] = {}
    for knot, part in zip(walk.schedule.outputs, grad.unbind(0), strict=True):
        by_state[knot] = by_state[knot] + part if knot in by_state else part
    back = method.turn(kept[:2], by_state.pop(walk.steps, torch.zeros_like(kept[0])))
    for end in range(walk.steps, 0, -BLOCK):
        first = max(0, end - BLOCK)
        with torch.enable_grad():
            leaves = walk.reads.weights(walk.field, first, end, walk.u)
            opened, opening = walk.reads.opening(walk.field, first, end, walk.u)
        block, openings = Block(walk.field, leaves, gradients), Block(walk.field, opening, gradients)
        for k in reversed(range(first, end)):
            if k + 1 in by_state:
                back.by_x = back.by_x + by_state[k + 1]
            method.undo(back, _Place(block, k - first, k, widths[k], by_widths))
            if k in opened:
                method.close(back, _Place(openings, opened.index(k), k, widths[k], by_widths))
        block.push()
        openings.push()
    if walk.steps and 0 in by_state:
        back.by_x = back.by_x + by_state[0]
    by_x, copies = method.finish(back)
    _check_drift(plan, walk, variables[0], copies, kept[2], kept[3])
    found: dict[int, Tensor | None] = dict(zip(asked, gradients.sums, strict=True))
    found[0], found[WIDTHS] = by_x, None if by_widths is None else torch.stack(by_widths)
    return [found.get(k) if need else None for k, need in enumerate(needed)]


def _check_drift(plan: Deferred, walk: Walk, x: Tensor | None, copies: tuple[Tensor, ...], size: Tensor, start: Tensor) -> None:
    """Hold the state that was walked back to against the one that the walk began with.

    Args:
        size: of each element, no more than `start`, that of its sample.

    Raises:
        NotReversibleError: they differ by more than the square root of the rounding.
    """
    if x is None or hidden(x) or x.numel() == 0:
        return
    x = x.detach()
    away = torch.stack([(copy - x).abs() for copy in copies]).amax(0)
    eps = plan.rounding(x.dtype)
    allowed = eps**0.5
    drift = float(relative(away, size))
    if not drift <= allowed:
        # An element that is small because larger ones cancel in it has their rounding, and no digits of its own to lose.
        noise = torch.minimum(_noise(walk, x, eps), NOISE * eps * start)
        drift = float(relative(away, torch.maximum(size, noise / allowed)))
    if plan.walk.report is not None:
        plan.walk.report.drifted(drift)
    if not drift <= allowed:
        raise NotReversibleError(
            f"walking back {plan.walk.steps} steps of {plan.walk.method.name} missed the initial state by {drift:.1e} of its size, and {allowed:.1e} "
            "is allowed, so the gradient would be wrong; take gradient='checkpoint', more precise numbers, or a shorter span",
            drift=drift,
            allowed=allowed,
        )


def _noise(walk: Walk, x: Tensor, eps: float) -> Tensor:
    """How far rounding of all elements of `x` may move each one on the way there and back, by the field at the start."""
    steps, opening = walk.reads.opening(walk.field, 0, 1, walk.u)
    if not steps:
        return torch.zeros_like(x.abs())
    (weights,) = rows(tuple(leaf.detach() for leaf in opening), 1)[0]
    slope, largest = walk.field.evaluate(x, weights).detach(), torch.zeros_like(x.abs())
    # Signs without a pattern, lest the changes cancel where the elements do; several, since one may round to no change at all.
    random = torch.Generator().manual_seed(0)
    for _ in range(TRIALS):
        signs = torch.rand(x.shape, generator=random).sub_(0.5).sign_().to(x.device)
        largest = torch.maximum(largest, (walk.field.evaluate(x + 2 * eps * signs * x, weights).detach() - slope).abs())
    span = sum((width.detach().abs() if isinstance(width, Tensor) else abs(width)) for width in walk.widths)
    return NOISE * largest * span


@dataclass(eq=False)
class _Place:
    """See `undoing.Place`."""

    block: Block
    read: int
    step: int
    h: Width
    by_widths: list[Tensor] | None

    @property
    def asked(self) -> bool:
        return self.by_widths is not None

    def evaluate(self, x: Tensor) -> tuple[Tensor, Pullback]:
        return self.block.evaluate(self.read, x)

    def by_width(self, product: Tensor, later: int = 0) -> None:
        if self.by_widths is not None:
            total = self.by_widths[self.step + later]
            total += product.real.sum_to_size(total.shape) if product.is_complex() else product.sum_to_size(total.shape)
