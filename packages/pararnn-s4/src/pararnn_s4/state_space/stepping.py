"""One trapezoidal step of a model `A = diag(rate) - P P*`, which keeps that form: diagonal and low rank.

    x[t+1] = transition * x[t] - left Re(right x[t]) + drive u[t]

With `D = 1 / (1 - dt rate / 2)` the Woodbury identity gives `(1 - dt A / 2)^-1 w = D w - left Re(right w) / 2`, where `right = P* D`,
`left = f D dt P G^-1`, `G = 1 + f/2 Re(P* D dt P)`, and `f` is 2 for complex models (each pair counts twice) and 1 for real ones; the step
is twice this less the identity. The real part of `G` is at least the identity, so that solving with it loses nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_s4.state_space.continuous import Continuous
from pararnn_s4.state_space.discretisation import bilinear


class LowRankStep(NamedTuple):
    """The constants of one step of each feature; real parts of real models are these themselves.

    Attributes:
        transition: the diagonal, `(d_model, state)`.
        left: `(rank, d_model, state)`.
        right: `(rank, d_model, state)`.
        drive: `(d_model, state)`.
        output: `C`, `(channels, d_model, state)`, without the factor 2 of conjugate pairs.
    """

    transition: Tensor
    left: Tensor
    right: Tensor
    drive: Tensor
    output: Tensor


def low_rank_step(model: Continuous) -> LowRankStep:
    """The constants of one step of `model`.

    Raises:
        ConfigError: the model is diagonal.
    """
    if model.low_rank is None:
        raise ConfigError("a model without a low-rank part has a diagonal step; use DiagonalSSM")
    pairs = 2 if model.rate.is_complex() else 1
    sampled = bilinear(model.rate, model.dt)
    # The gain of the trapezoidal rule is dt D.
    right = model.low_rank.conj() * (sampled.gain / model.dt)
    scaled = model.low_rank * sampled.gain
    gram = _real(torch.einsum("rhn,shn->hrs", model.low_rank.conj(), scaled)) * (pairs / 2)
    left = pairs * _solve(gram, scaled)
    weights = _real((right * (model.dt * model.input)).sum(-1, keepdim=True))
    drive = sampled.gain * model.input - (left * weights).sum(0) / 2
    return LowRankStep(sampled.transition, left, right, drive, model.output)


def _solve(gram: Tensor, scaled: Tensor) -> Tensor:
    """`scaled (1 + gram)^-1`, over the rank."""
    if gram.shape[-1] == 1:
        return scaled / (1 + gram[:, 0])
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    inverse = torch.linalg.solve(identity + gram, identity.expand_as(gram))
    return torch.einsum("shn,hsr->rhn", scaled, inverse.to(scaled.dtype))


def _real(tensor: Tensor) -> Tensor:
    return tensor.real if tensor.is_complex() else tensor
