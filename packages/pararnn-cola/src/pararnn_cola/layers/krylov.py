"""The largest singular value of a linear map that is known only by what it does."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def largest_singular_value(
    apply: Callable[[Tensor], Tensor], transpose: Callable[[Tensor], Tensor], start: Tensor, *, tolerance: float = 1e-12, max_steps: int = 300
) -> Tensor:
    """The norm of `apply`, a scalar, found from `start`, any input that is not zero, by power iteration that keeps its vectors (Lanczos).

    It stops once the residual of the eigenpair of `transpose(apply(.))` bounds its relative error by `tolerance`, or after `max_steps`. Plain power
    iteration would need thousands of steps on maps of some size, whose largest singular values lie close together.
    """
    basis = [(start / torch.linalg.vector_norm(start)).flatten()]
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    value = start.new_zeros(())
    for _ in range(min(max_steps, start.numel())):
        image = transpose(apply(basis[-1].view_as(start))).flatten()
        diagonal.append(torch.dot(image, basis[-1]))
        kept = torch.stack(basis)
        # Twice, because once leaves as much as cancelled.
        for _ in range(2):
            image = image - (kept @ image) @ kept
        length = torch.linalg.vector_norm(image)
        small = torch.diag(torch.stack(diagonal))
        if beside:
            off = torch.diag(torch.stack(beside), 1)
            small = small + off + off.mT
        values, vectors = torch.linalg.eigh(small)
        value = values[-1].clamp_min(0)
        # The error of an eigenvalue is at most its residual, and at most the residual's square over the distance to the next.
        residual = length * vectors[-1, -1].abs()
        gap = values[-1] - values[-2] if len(values) > 1 else values[-1]
        if float(torch.minimum(residual, residual.square() / gap.clamp_min(torch.finfo(gap.dtype).tiny))) <= tolerance * float(value):
            break
        beside.append(length)
        basis.append(image / length)
    return value.sqrt()
