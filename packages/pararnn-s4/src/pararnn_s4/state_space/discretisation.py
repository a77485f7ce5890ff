"""Sampling a diagonal state-space model: one step of `x' = a x + b u` under a constant input, exactly or by the trapezoidal rule.

    zero-order hold   transition exp(dt a)                      gain (exp(dt a) - 1) / a
    bilinear          transition (1 + dt a/2) / (1 - dt a/2)    gain dt / (1 - dt a/2)

Kernels need the logarithm of the transition too, since they hold its powers as exponentials. All of it is cheap, one number a state, so
callers do it in double precision whatever their parameters are.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from pararnn.errors import ConfigError

Discretisation: TypeAlias = Literal["zoh", "bilinear"]

# Below this, a series gives (exp(x) - 1) / x: the quotient loses digits there, and its derivative twice as many. The ten terms are exact.
_SMALL = 0.1
_TERMS = 10
# The trapezoidal rule maps dt a = -2 to zero, whose logarithm is not finite. This is added to it there, not put in its place, so that the
# derivatives of its powers are right, that of the first one above all.
_ZERO = 1e-30


class Sampled(NamedTuple):
    """One sampled step `x[t+1] = transition * x[t] + gain * b * u[t]`, and `log` with `exp(l * log) = transition ** l`."""

    transition: Tensor
    log: Tensor
    gain: Tensor


def growth(x: Tensor, exponential: Tensor) -> Tensor:
    """`(exp(x) - 1) / x`, which is 1 at zero, from `x` and `exp(x)`; real or complex, accurate to a few roundings, as is its derivative."""
    small = x.abs() < _SMALL
    near = torch.where(small, x, 0.0)
    series = torch.ones_like(x) / math.factorial(_TERMS + 1)
    for term in range(_TERMS, 0, -1):
        series = series * near + 1.0 / math.factorial(term)
    return torch.where(small, series, (exponential - 1) / torch.where(small, 1.0, x))


def zoh(rate: Tensor, dt: Tensor) -> Sampled:
    """The exact step of `dt` seconds for `rate` per second; a rate of zero has the gain `dt`.

    `rate` and `dt` broadcast against each other; `rate` may be complex or real.
    """
    log = dt * rate
    transition = torch.exp(log)
    return Sampled(transition=transition, log=log, gain=dt * growth(log, transition))


def bilinear(rate: Tensor, dt: Tensor) -> Sampled:
    """The trapezoidal (Tustin) step of `dt` seconds for `rate` per second; never unstable for a rate whose real part is not positive.

    `rate` and `dt` broadcast against each other; `log` is complex even for a real `rate`, since `dt * rate < -2` has a negative transition.
    """
    half = dt * rate / 2
    inverse = (1 - half).reciprocal()
    transition = (1 + half) * inverse
    return Sampled(transition=transition, log=_logarithm(transition, 2 * half * inverse), gain=dt * inverse)


def _logarithm(transition: Tensor, difference: Tensor) -> Tensor:
    """The complex logarithm of `transition`, whose `difference` to one is known to more digits than `transition - 1` has."""
    if not transition.is_complex():
        transition, difference = (torch.complex(part, torch.zeros_like(part)) for part in (transition, difference))
    # Slow states lose their digits in `transition` itself, and with a length of 65536 the kernel loses five of them.
    slow = difference.abs() < 0.5
    fast = torch.where(slow, 1.0, torch.where(transition.abs() < _ZERO, transition + _ZERO, transition))
    return torch.where(slow, torch.log1p(torch.where(slow, difference, 0.0)), torch.log(fast))


def sample(rate: Tensor, dt: Tensor, disc: Discretisation) -> Sampled:
    """`zoh` or `bilinear`, by name.

    Raises:
        ConfigError: another name.
    """
    if disc == "zoh":
        return zoh(rate, dt)
    if disc == "bilinear":
        return bilinear(rate, dt)
    raise ConfigError(f"disc={disc!r} is no discretisation; choose 'zoh' (exact for inputs held between samples) or 'bilinear'", disc=disc)
