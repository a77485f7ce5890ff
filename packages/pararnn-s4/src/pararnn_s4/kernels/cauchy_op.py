"""The Cauchy product as an operation of autograd, for backends that compute products and gradients of plain numbers.

Backward gets the inputs only, so its memory is that of inputs and outputs; a backend computes the reciprocals again. A second derivative
differentiates the formula as a whole, with the memory of the whole matrix.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from pararnn.scans.dispatch import full_precision
from pararnn_s4.kernels.node_chunks import gradient_of_nodes, whole

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


class Product(Protocol):
    """`sum_n v[g, h, n] / (z[h, l] - w[h, n])`, with the conjugate pairs when `conj`."""

    def __call__(self, v: Tensor, z: Tensor, w: Tensor, *, conj: bool) -> Tensor: ...


class GradientsOf(Protocol):
    """Gradients of `v` and `w` from that of the product; see `reciprocals.over_nodes` for what is summed."""

    def __call__(self, v: Tensor, z: Tensor, w: Tensor, grad: Tensor, *, conj: bool) -> tuple[Tensor, Tensor]: ...


class Engine(NamedTuple):
    """How a backend computes; both functions see plain numbers, and no derivatives are taken through them."""

    product: Product
    gradients: GradientsOf


def cauchy_by(engine: Engine, v: Tensor, z: Tensor, w: Tensor, *, conj: bool) -> Tensor:
    """The product computed by `engine`, differentiable to any order."""
    result: Tensor = _Cauchy.apply(engine, v, z, w, conj)
    return result


class _Cauchy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, engine: Engine, v: Tensor, z: Tensor, w: Tensor, conj: bool) -> Tensor:
        ctx.save_for_backward(v, z, w)
        ctx.engine, ctx.conj = engine, conj
        return engine.product(v, z, w, conj=conj)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, Tensor | None, Tensor | None, None]:
        v, z, w = ctx.saved_tensors
        of_v = of_z = of_w = None
        _, needs_v, needs_z, needs_w, _ = ctx.needs_input_grad
        with full_precision(grad):
            if torch.is_grad_enabled():
                of_v, of_z, of_w = _differentiable_gradients(v, z, w, grad, ctx.conj, (needs_v, needs_z, needs_w))
            else:
                grad = grad.resolve_conj()
                if needs_v or needs_w:
                    of_v, of_w = ctx.engine.gradients(v, z, w, grad, conj=ctx.conj)
                if needs_z:
                    of_z = gradient_of_nodes(v, z, w, grad, conj=ctx.conj)
        return None, of_v, of_z, of_w, None


def _differentiable_gradients(v: Tensor, z: Tensor, w: Tensor, grad: Tensor, conj: bool, needs: tuple[bool, bool, bool]) -> Gradients:
    wanted = [tensor for tensor, need in zip((v, z, w), needs, strict=True) if need]
    found = iter(torch.autograd.grad(whole(v, z, w, conj=conj), wanted, grad, create_graph=True))
    of_v, of_z, of_w = (next(found) if need else None for need in needs)
    return of_v, of_z, of_w
