"""The elementwise parts of a CfC step, in as few passes over memory as autograd allows.

A fresh large tensor costs more than the arithmetic that fills it, so results of this module's own are overwritten. Not inside transforms and
tracers, which follow such writes badly or not at all; there the same is done out of place.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pararnn.scans.dispatch import only_numbers


def tanh(fresh: Tensor) -> Tensor:
    """`tanh(fresh)` of a tensor that nobody else holds."""
    return fresh.tanh_() if only_numbers() else torch.tanh(fresh)


def keep_share(rate: Tensor, elapsed: Tensor) -> Tensor:
    """`exp(-softplus(rate) elapsed)`, the share of the state `(..., state)` that is kept over a gap `(..., 1)`."""
    speed = functional.softplus(rate)
    # The gradient by the gap reads the speed.
    if elapsed.requires_grad or not only_numbers():
        return torch.exp(speed * -elapsed)
    return speed.mul_(-elapsed).exp_()


def mix_slope(candidate: Tensor, recurrent: Tensor, decay: Tensor) -> Tensor:
    """`a + (1 - a) (1 - n^2) u` for candidate `n`, recurrent weight `u` and decay `a`: how the next state follows the state. Without gradients."""
    one = torch.ones((), dtype=candidate.dtype, device=candidate.device)
    slope = torch.addcmul(one, candidate, candidate, value=-1)
    if only_numbers():
        return slope.mul_(recurrent).lerp_(one, decay)
    return torch.lerp(slope * recurrent, one, decay)
