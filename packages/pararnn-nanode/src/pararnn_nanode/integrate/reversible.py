"""Exact gradients at a memory that does not depend on the steps: the walk is undone step by step, each with one evaluation.

Weights are built in blocks of steps, forwards and backwards. A walk that cannot be undone within rounding raises; it never gives a wrong gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import ConfigError, DifferentiationError
from pararnn.transforms import inside_transform
from pararnn_nanode.errors import NotReversibleError
from pararnn_nanode.integrate.cotangents import Block, Gradients, Pullback
from pararnn_nanode.integrate.deferred import WIDTHS, Deferred, deferred
from pararnn_nanode.integrate.methods import State, Width
from pararnn_nanode.integrate.undoing import ReversibleMethod
from pararnn_nanode.integrate.walk import BLOCK, Walk, backprop, hidden, walk_in_blocks


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
        states, last = plan.forwards(_forwards, inputs, "reversible")
        ctx.plan = plan
        ctx.save_for_backward(*inputs, *last)
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        plan: Deferred = ctx.plan
        saved, needed = ctx.saved_tensors, ctx.needs_input_grad[1:]
        inputs, last = saved[:-2], saved[-2:]
        if torch.is_grad_enabled():
            return None, *plan.again(backprop, inputs, needed, grad)
        variables = plan.variables(inputs, needed)
        with plan.autocast():
            return None, *plan.capture.run(_backwards, plan, variables, needed, last, grad, parameters=plan.parameters(variables))


def _forwards(walk: Walk, x: Tensor) -> tuple[Tensor, State]:
    """States at the asked times, and the two tensors from which the walk can be undone."""
    states, state = walk_in_blocks(walk, x)
    # What an unstable method carries grows from step to step; in a few coarse ones it is honestly of the size of the state.
    if walk.steps > BLOCK and isinstance(walk.method, ReversibleMethod) and not hidden(x):
        gap, size = walk.method.gap(state, walk.widths[-1]), torch.maximum(x.abs().max(), state[0].abs().max())
        if bool(gap > size):
            raise NotReversibleError(
                f"what {walk.method.name} carries beside the state parted from it by {float(gap):.1e}, and the state has size {float(size):.1e}: "
                "the method is unstable for this equation, as it is for decaying ones over long times; take "
                "gradient='checkpoint' with another method",
                drift=float(gap / size),
                allowed=1.0,
            )
    return states, state[:2]


def _backwards(plan: Deferred, variables: Sequence[Tensor | None], needed: Sequence[bool], last: State, grad: Tensor) -> list[Tensor | None]:
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
    back = method.turn(last, by_state.pop(walk.steps, torch.zeros_like(last[0])))
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
    _check_drift(plan, variables[0], copies)
    found: dict[int, Tensor | None] = dict(zip(asked, gradients.sums, strict=True))
    found[0], found[WIDTHS] = by_x, None if by_widths is None else torch.stack(by_widths)
    return [found.get(k) if need else None for k, need in enumerate(needed)]


def _check_drift(plan: Deferred, x: Tensor | None, copies: tuple[Tensor, ...]) -> None:
    """Hold the state that was walked back to against the one that the walk began with.

    Raises:
        NotReversibleError: they differ by more than the square root of the rounding.
    """
    if x is None or hidden(x) or x.numel() == 0:
        return
    x = x.detach()
    size = x.abs().max()
    away = torch.stack([(copy - x).abs().max() for copy in copies]).max()
    drift, allowed = float(away / torch.where(size > 0, size, torch.ones_like(size))), plan.rounding(x.dtype) ** 0.5
    if plan.walk.report is not None:
        plan.walk.report.drifted(drift)
    if not drift <= allowed:
        raise NotReversibleError(
            f"walking back {plan.walk.steps} steps of {plan.walk.method.name} missed the initial state by {drift:.1e} of its size, and {allowed:.1e} "
            "is allowed, so the gradient would be wrong; take gradient='checkpoint', more precise numbers, or a shorter span",
            drift=drift,
            allowed=allowed,
        )


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
