"""Exact gradients of a trajectory that was found in parallel, by the same kind of iteration, backwards.

At the solution the costate answers `l[k] = g[k] + A[k]^T l[k+1]` with the derivative `A` of each step. All steps are evaluated once more, on the
graph, from states taken as constants; the backward pass of that one evaluation applies every `A^T` at once. The adjoint of the correction of the
forward iteration turns this into costates that are right to rounding, and autograd carries them from there to the initial state, to every parameter,
to inputs and to times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pararnn.errors import DifferentiationError
from pararnn.solver.adjoint import ADVICE, limit_derivatives
from pararnn.structures import Structure
from pararnn_nanode.depth.blocks import Correction
from pararnn_nanode.depth.stages import Stages
from pararnn_nanode.depth.stop import LinearStop, Progress
from pararnn_nanode.integrate.outside import outsiders

MOST = 200
WALK = "parallel=None gives derivatives of any order"
"""What a block has to offer where further derivatives are asked for."""


def attach(stages: Stages, x: Tensor, states: Tensor, correction: Correction, *, advice: str = ADVICE) -> Tensor:
    """The states after all steps `(steps, *state)`, differentiable once by all that `stages` and `x` depend on, if anything.

    Args:
        stages: on the graph.
        x: the initial state, on the graph.
        states: the solution `(steps + 1, *state)`, constants.
        advice: what to do where further derivatives are asked for, which are refused.
    """
    with torch.enable_grad():
        before = states[:-1].detach().requires_grad_()
        after = before + stages.increment(before)
    if not (x.requires_grad or stages.requires_grad or outsiders(after, (before,))):
        return states[1:]

    def pull(costate: Tensor) -> Tensor:
        (pulled,) = torch.autograd.grad(after, before, costate, retain_graph=True)
        return pulled

    # A second derivative would have to know how the states themselves move; it is refused wherever it could be asked for.
    reached, start = (limit_derivatives(tensor, after, x, order=1, advice=advice) for tensor in (after, x))
    settled: Tensor = _Settle.apply(pull, correction, stages.field.structure, reached, start)
    return limit_derivatives(settled, after, x, order=1, advice=advice)


class _Settle(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, pull: Callable[[Tensor], Tensor], correction: Correction, structure: type[Structure] | None, after: Tensor, x: Tensor
    ) -> Tensor:
        ctx.pull, ctx.correction, ctx.structure = pull, correction, structure
        return after.view_as(after)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        costate, pulled = settle(ctx.pull, ctx.correction, grad, structure=ctx.structure)
        return None, None, None, costate, pulled[0]


def settle(
    pull: Callable[[Tensor], Tensor], correction: Correction, grad: Tensor, *, structure: type[Structure] | None = None
) -> tuple[Tensor, Tensor]:
    """Costates of the states after all steps, and what `pull` makes of them: one state further back.

    Right to rounding against the largest costate of each sample, however much more another sample weighs in the loss.

    Raises:
        DifferentiationError: they do not settle, or not to rounding.
    """
    stop, progress = LinearStop(structure=structure), Progress()
    costate, pulled = torch.zeros_like(grad), torch.zeros_like(grad)
    size = scale = torch.inf
    for _ in range(MOST):
        residual = grad - costate
        residual[:-1] += pulled[1:]
        update = correction.apply_adjoint(residual)
        costate = costate + update
        pulled = pull(costate)
        progress, verdict = stop.judge(progress, update, costate)
        size, scale, open_ = verdict.tolist()
        # Costates that are not finite are what walking back would give as well.
        if not open_ or not size < torch.inf:
            return costate, pulled
    raise DifferentiationError(
        f"the gradient of a solve in parallel over depth did not settle in {MOST} iterations (last update {size:.1e} of {scale:.1e}); "
        "use parallel=None, which differentiates every step",
        update=size,
    )
