"""The Vandermonde products as operations of autograd, computed by the two-level products as they are or compiled.

The derivatives are the same two products again: that of `vandermonde` is `vandermonde_transpose`, and the other way round, with weights
`l` where the derivative is to `x`. So they are right to any order and need the memory of the forward pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from pararnn.scans.dispatch import full_precision
from pararnn_s4.kernels.two_level import Pair


class Product(Protocol):
    """See `two_level.product`."""

    def __call__(self, v: Pair, x: Pair, length: int, conj: bool) -> Pair: ...


class Moments(Protocol):
    """See `two_level.moments`."""

    def __call__(self, u: Tensor, x: Pair, wanted: tuple[bool, bool]) -> tuple[Pair, ...]: ...


class Engine(NamedTuple):
    """How a backend computes; no derivatives are taken through these functions."""

    product: Product
    moments: Moments


def vandermonde_by(engine: Engine, v: Tensor, x: Tensor, length: int, *, conj: bool) -> Tensor:
    """`sum_n v[g, h, n] exp(x[h, n] l)`, twice its real part when `conj`, differentiable to any order."""
    result: Tensor = _Vandermonde.apply(engine, v, x, length, conj)
    return result


def transpose_by(engine: Engine, u: Tensor, x: Tensor) -> Tensor:
    """`sum_l u[g, h, l] exp(x[h, n] l)`, differentiable to any order."""
    result: Tensor = _Transposed.apply(engine, u, x)
    return result


def product_of(engine: Engine, v: Tensor, x: Tensor, length: int, conj: bool) -> Tensor:
    """The product of complex tensors by an engine that knows real ones."""
    real, imag = engine.product((v.real, v.imag), (x.real, x.imag), length, conj)
    return real if conj else torch.complex(real, imag)


def moments_of(engine: Engine, u: Tensor, x: Tensor, wanted: tuple[bool, bool]) -> tuple[Tensor, ...]:
    """The sums for real or complex `u` by an engine that knows real ones."""
    poles = x.real, x.imag
    if not u.is_complex():
        return tuple(torch.complex(*sums) for sums in engine.moments(u, poles, wanted))
    # The sums of the real part of u, then those of its imaginary part.
    both = (torch.complex(*sums).chunk(2) for sums in engine.moments(torch.cat((u.real, u.imag)), poles, wanted))
    return tuple(real + 1j * imag for real, imag in both)


class _Vandermonde(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, engine: Engine, v: Tensor, x: Tensor, length: int, conj: bool) -> Tensor:
        ctx.save_for_backward(v, x)
        ctx.engine, ctx.conj = engine, conj
        return product_of(engine, v, x, length, conj)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, Tensor | None, None, None]:
        v, x = ctx.saved_tensors
        wanted = ctx.needs_input_grad[1:3]
        with full_precision(grad):
            sums = _moments(ctx.engine, 2 * grad if ctx.conj else grad.conj_physical(), x, wanted)
            of_v = sums[0].conj_physical() if wanted[0] else None
            of_x = (v * sums[-1]).sum(0).conj_physical() if wanted[1] else None
        return None, of_v, of_x, None, None


class _Transposed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, engine: Engine, u: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(u, x)
        ctx.engine = engine
        return moments_of(engine, u, x, (True, False))[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        u, x = ctx.saved_tensors
        of_u = of_x = None
        with full_precision(grad):
            if ctx.needs_input_grad[1]:
                of_u = vandermonde_by(ctx.engine, grad.conj_physical(), x, u.shape[-1], conj=not u.is_complex())
                of_u = of_u.conj_physical() if u.is_complex() else of_u / 2
            if ctx.needs_input_grad[2]:
                (weighted,) = _moments(ctx.engine, u, x, (False, True))
                of_x = (grad * weighted.conj()).sum(0)
        return None, of_u, of_x


def _moments(engine: Engine, u: Tensor, x: Tensor, wanted: tuple[bool, bool]) -> tuple[Tensor, ...]:
    """The sums of `u_l exp(x l)` and of `l u_l exp(x l)`, those that are wanted."""
    if not torch.is_grad_enabled():
        return moments_of(engine, u, x, wanted)
    # Where these sums are differentiated in turn, the weights go to u, so that the sums are an operation of this module.
    drives = ((u,) if wanted[0] else ()) + ((u * torch.arange(u.shape[-1], device=u.device),) if wanted[1] else ())
    return transpose_by(engine, torch.cat(drives), x).chunk(len(drives))
