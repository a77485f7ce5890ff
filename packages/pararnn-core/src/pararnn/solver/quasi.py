"""Exact gradients where the declared structure is coarser than the true Jacobian.

The costate still solves `lam[t] = g[t] + J[t+1]^H lam[t+1]` with the true `J`, but only the coarse one can be scanned. So the scan becomes the
preconditioner of an iteration whose residual uses true transposed products, of all times at once: quasi-Newton on a linear system.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pararnn.errors import DifferentiationError
from pararnn.scans.edges import heads
from pararnn.scans.op import reverse_scan
from pararnn.solver.lanes import largest
from pararnn.solver.problem import Problem
from pararnn.structures.base import Structure
from pararnn.transforms import inside_transform

MOST_ITERATIONS = 200


def settle_costate(problem: Problem, value: Tensor, coarse: Structure, offsets: Tensor | None, previous: Tensor, scan_backend: str) -> Tensor:
    """The output `value` of all steps, behind a node that settles the costate by iteration in the backward pass."""
    if inside_transform():
        raise DifferentiationError(
            "gradients of a solve with a coarse Jacobian cannot be taken inside torch.func transforms; "
            "declare the true structure, use solver='sequential', or torch.no_grad() where no gradient is needed"
        )
    # Evaluated here and not in the backward pass, so that a weight that is edited in between is noticed.
    with torch.enable_grad():
        state = previous.detach().requires_grad_()
        following = problem.step(state, problem.detach().drive)

    def pull(costate: Tensor) -> Tensor:
        (pulled,) = torch.autograd.grad(following, state, costate, retain_graph=True)
        return pulled

    result: Tensor = _Settle.apply(pull, coarse, offsets, scan_backend, value, problem.initial)
    return result


class _Settle(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pull: Any, coarse: Structure, offsets: Tensor | None, backend: str, value: Tensor, initial: Tensor) -> Tensor:
        ctx.pull, ctx.coarse, ctx.offsets, ctx.backend = pull, coarse, offsets, backend
        return value.view_as(value)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        eps = torch.finfo(grad.dtype).eps
        costate, update, pulled = torch.zeros_like(grad), torch.inf, torch.zeros_like(grad)
        for _ in range(MOST_ITERATIONS):
            residual = grad + _earlier(pulled, ctx.offsets) - costate
            step = reverse_scan(ctx.coarse, residual, ctx.offsets, reverse=False, backend=ctx.backend)
            costate = costate + step
            pulled = ctx.pull(costate)
            before, update = update, largest(step.abs())
            if update <= 8 * eps * largest(costate.abs()) or not update < torch.inf:
                break
            if update > 0.9 * before and update > 1e3 * eps * largest(costate.abs()):
                raise _no_settling(update)
        else:
            raise _no_settling(update)
        at = slice(0, 1) if ctx.offsets is None else heads(ctx.offsets, pulled, reverse=False)[0]
        start = pulled[:, at]
        if ctx.offsets is not None:
            segments = heads(ctx.offsets, pulled, reverse=False)[1]
            start = pulled.new_zeros(pulled.shape[0], len(ctx.offsets) - 1, pulled.shape[2]).index_copy(1, segments, start)
        return None, None, None, None, costate, start


def _earlier(pulled: Tensor, offsets: Tensor | None) -> Tensor:
    """What each step's costate receives from the next step; nothing at the end of a sequence."""
    moved = pulled.roll(-1, dims=1)
    last = slice(-1, None) if offsets is None else heads(offsets, pulled, reverse=True)[0]
    moved[:, last] = 0
    return moved


def _no_settling(update: float) -> DifferentiationError:
    return DifferentiationError(
        f"the gradient of a solve with a coarse Jacobian did not settle (last update {update:.1e}); "
        "declare the true structure, or use solver='sequential', which differentiates every step",
        update=update,
    )
