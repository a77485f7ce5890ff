"""Complex half states as real vectors: `[Re x, Im x]`, in which the conjugate partners need no mention.

A complex model of `n` pairs is a real one of size `2 n`. The product `w x` with a row, of which only the real part counts, is then
`[Re w, -Im w] [Re x, Im x]`, and a diagonal transition consists of rotations with scaling. Real models pass through unchanged.
"""

from __future__ import annotations

import torch
from torch import Tensor


def columns(state: Tensor) -> Tensor:
    """`[Re x, Im x]` along the last dimension; a real `state` itself."""
    return torch.cat((state.real, state.imag), dim=-1) if state.is_complex() else state


def halves(state: Tensor) -> Tensor:
    """The complex state of which `state` is the real form."""
    real, imag = state.chunk(2, dim=-1)
    return torch.complex(real.contiguous(), imag.contiguous())


def rows(weights: Tensor) -> Tensor:
    """The row whose product with `columns(x)` is `Re(weights x)`; real `weights` themselves."""
    return torch.cat((weights.real, -weights.imag), dim=-1) if weights.is_complex() else weights


def from_rows(weights: Tensor) -> Tensor:
    """The complex weights of which `weights` is the row form."""
    # Not the conj() of halves, a view that torch only notes as conjugated: vmap has no rule for taking parts of such a one.
    real, imag = weights.chunk(2, dim=-1)
    return torch.complex(real.contiguous(), -imag)


def diagonal_matrix(transition: Tensor) -> Tensor:
    """The real matrix `(..., size, size)` that multiplies `columns(x)` as the diagonal `transition` multiplies `x`."""
    if not transition.is_complex():
        return torch.diag_embed(transition)
    real, imag = torch.diag_embed(transition.real), torch.diag_embed(transition.imag)
    return torch.cat((torch.cat((real, -imag), dim=-1), torch.cat((imag, real), dim=-1)), dim=-2)


def dense_transition(transition: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The real matrix `(copies, size, size)` of `x -> transition * x - left Re(right x)`.

    `transition` `(copies, state)`, `left` and `right` `(rank, copies, state)`.
    """
    correction = columns(left).permute(1, 2, 0) @ rows(right).transpose(0, 1)
    return diagonal_matrix(transition) - correction
