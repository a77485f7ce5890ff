"""What a sampled state-space model can be asked, whatever the form of its transition, and the reading of its inputs.

One sampled system answers several questions about the same parameters at the same rate, so that what they share is computed once. Its state
is the one before the sample: `x[t+1] = A x[t] + B u[t]`, `y[t] = C x[t+1]`. A complex state holds one of each conjugate pair, and its output
is twice the real part of the product with `C`.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from pararnn_s4.state_space.decoder import Decoder

Mode: TypeAlias = Literal["linear", "dense", "diagonal"]


class SampledSystem(Protocol):
    """A state-space model at one sampling rate; differentiable in its parameters, its inputs and its states."""

    def kernel(self, length: int) -> Tensor:
        """`C A^l B` for `l = 0 .. length - 1`, real `(channels, d_model, length)`."""

    def response(self, state: Tensor, length: int) -> Tensor:
        """`C A^(t+1) state`, the outputs that `state` `(batch, d_model, state)` alone causes: `(batch, channels, d_model, length)`."""

    def advance(self, u: Tensor, state: Tensor | None, lengths: Tensor | None) -> Tensor:
        """The state after all samples of `u` `(batch, d_model, length)`, of row `i` after its first `lengths[i]`."""

    def decoder(self, mode: Mode) -> Decoder:
        """The constants of one step."""


def latest_first(u: Tensor, lengths: Tensor | None) -> Tensor:
    """`u` `(batch, d_model, length)` with the last sample of each row first, and zeros after its first one."""
    if lengths is None:
        return u.flip(-1)
    lag = torch.arange(u.shape[-1], device=u.device)
    index = lengths.unsqueeze(-1) - 1 - lag
    valid = (index >= 0).unsqueeze(1)
    reversed_rows = u.gather(-1, index.clamp(min=0).unsqueeze(1).expand_as(u))
    # Selected, not multiplied: padding may hold NaN.
    return torch.where(valid, reversed_rows, torch.zeros((), dtype=u.dtype, device=u.device))
