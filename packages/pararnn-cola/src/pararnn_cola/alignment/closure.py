"""The closed form that COLA assumes, with nothing left to estimate: what it could do at best, and the system that it stands in for."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.errors import InputError, ShapeError


def best_feedback(exact: Tensor, instantaneous: Tensor, slope: Tensor, leak: Tensor | float, alpha: Tensor) -> Tensor:
    """The constant `mu` a unit, `(units,)`, with which `exact (1 - leak alpha - mu p) = instantaneous` holds best, by least squares.

    Signals and slopes are `(batch, time, units)`. It knows the exact signals, so no rule has it.
    """
    seen = slope * exact
    square = seen.square().sum((0, 1))
    fitted = (seen * (exact * (1 - leak * alpha) - instantaneous)).sum((0, 1))
    return torch.where(square > 0, fitted / torch.where(square > 0, square, 1.0), 0.0)


def close(instantaneous: Tensor, slope: Tensor, leak: Tensor | float, alpha: Tensor, mu: Tensor, margin: float) -> Tensor:
    """`d / (1 - leak alpha - mu p)`, with the feedback bounded by `1 - margin` as COLA bounds it where it is used."""
    return instantaneous / (1 - (mu * slope + leak * alpha).clamp(margin - 1, 1 - margin))


@torch.no_grad()
def closure_solve(instantaneous: Tensor, slope: Tensor, weight: Tensor, alpha: Tensor | float) -> Tensor:
    """The solution `delta` of `(I - diag(p) W^T diag(alpha)) delta = d`, which holds where `delta[t+1] = alpha delta[t]` for each unit.

    A diagnostic, not a rule: a system of equations for each step and sample, at O(units^3). COLA's closed form avoids it, by a coefficient a unit
    in place of `W`; comparing the two tells what that costs.

    Args:
        instantaneous: `d` `(*lead, units)`, as `exact_signals` gives it.
        slope: `p`, of the same shape.
        weight: `W` `(units, units)`.
        alpha: `(units,)`, or one for all.

    Raises:
        ShapeError: they do not fit.
        InputError: a system has no solution: there, the sum over all later steps does not converge.
    """
    units = instantaneous.shape[-1]
    if slope.shape != instantaneous.shape or weight.shape != (units, units):
        raise ShapeError(
            f"signals {tuple(instantaneous.shape)}, slopes {tuple(slope.shape)} and weights {tuple(weight.shape)} do not fit; "
            "the first two are alike, (..., units), and W is (units, units)"
        )
    persistence = torch.as_tensor(alpha, dtype=weight.dtype, device=weight.device).expand(units)
    system = torch.eye(units, dtype=weight.dtype, device=weight.device) - slope.unsqueeze(-1) * (weight.mT * persistence)
    solution, faults = torch.linalg.solve_ex(system, instantaneous.unsqueeze(-1))
    if bool(faults.ne(0).any()):
        raise InputError(
            f"{int(faults.ne(0).sum())} of {faults.numel()} systems have no solution: alpha, W and p together feed a signal back in full"
        )
    delta: Tensor = solution.squeeze(-1)
    return delta
