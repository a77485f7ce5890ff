"""Vandermonde products as matrix products, in one launch: sum over n of v_n exp(x_n l), and the transposed sums over l.

With `l = hi LO + lo` the exponential splits into a table over `hi` and one over `lo`, both made inside the kernel, and the sum over n is
a product of the two: no array of size (state, length) exists. Phases are reduced in turns, `frac(Im(x) l / 2 pi)`, with a fused
multiply-add, so that a long sequence does not cost digits.

Layout: v (groups, copies, state), x (copies, state), results (groups, copies, length); complex numbers as pairs. One program owns
HI * LO steps of one copy (products), or all steps of a part for BLOCK of the state (sums; parts are added afterwards,
in a fixed order). Limits: length <= 2**24 in single precision, where steps are exact floats. Oracle: kernels/naive.py.

Source of the splitting: a Vandermonde matrix in geometric nodes is a product of two; no paper needed.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pararnn.selection import Request
from pararnn_s4.kernels import naive
from pararnn_s4.kernels.triton_support import FUSED, WORTH_SPLITTING, pairs, reasons, second_derivative

# Rows and columns of a tile, as measured: products are bound by the tables they make, sums by their registers.
PRODUCTS = (32, 128)
SHORT_PRODUCTS = (32, 64)
SUMS = (64, 64)
SHORT = 8192
SMALLEST = 16
LARGEST_STATE = 32


def probe() -> tuple[str, ...] | None:
    """Compute a small product and its gradients."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = reasons(Request.of("s4/vandermonde", device=device, dtype="complex64"))
    if found:
        return found
    v, x = (torch.full((1, 2, 3), -0.1 + 0.2j, device=device, requires_grad=True) for _ in range(2))
    vandermonde(v, x[0], 5, conj=True).sum().backward()
    return None


@triton.jit
def _exponential(real, imag, step, DOUBLE: tl.constexpr):
    """exp((real + i imag) step), with the phase taken modulo whole turns."""
    # 1 / (2 pi) as a number of the dtype, and what that number lacks.
    if DOUBLE:
        turn = imag * 0.15915494309189535
        rest = tl.fma(imag, tl.full(imag.shape, 0.15915494309189535, tl.float64), -turn) - imag * 9.839338337591243e-18
    else:
        turn = imag * 0.15915493667125702
        rest = tl.fma(imag, tl.full(imag.shape, 0.15915493667125702, tl.float32), -turn) + imag * 6.420638316725915e-09
    step = step + tl.zeros_like(turn)
    turn = turn + tl.zeros_like(step)
    whole = tl.floor(turn * step + 0.5)
    part = tl.fma(turn, step, -whole) + rest * step
    size = tl.exp(real * step)
    if DOUBLE:
        return size * tl.cos(part * 6.283185307179586), size * tl.sin(part * 6.283185307179586)
    # On a quarter of a turn to either side short polynomials have full precision, and no branch for large arguments is carried along.
    half = tl.floor(2.0 * part + 0.5)
    part = part - 0.5 * half
    size = size * (1.0 - 2.0 * tl.abs(half))
    square = part * part
    cosine = 60.24331272596903 + square * (-26.394961735887758 + square * 7.536670202987245)
    cosine = 1.0 + square * (-19.739208801001794 + square * (64.93939372104889 + square * (-85.45678820765963 + square * cosine)))
    sine = -76.7042813229959 + square * (42.00980574662181 + square * -14.394135458785408)
    sine = 6.283185307072584 + square * (-41.34170211699686 + square * (81.60522620635322 + square * sine))
    return size * cosine, size * (part * sine)


@triton.jit
def _load_pairs(base, index, mask):
    """The real and imaginary parts at `index`, zero where `mask` is false."""
    return tl.load(base + 2 * index, mask=mask, other=0.0), tl.load(base + 2 * index + 1, mask=mask, other=0.0)


@triton.jit
def _products_kernel(
    v_ptr,
    x_ptr,
    out_ptr,
    COPIES,
    STATE,
    LENGTH,
    HI: tl.constexpr,
    LO: tl.constexpr,
    BLOCK: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    DOUBLE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    number = tl.float64 if DOUBLE else tl.float32
    copy = tl.program_id(1)
    row = (tl.program_id(2) * COPIES + copy).to(tl.int64)
    lo = tl.arange(0, LO)
    hi = (tl.program_id(0) * HI + tl.arange(0, HI)) * LO
    real = tl.zeros((HI, LO), number)
    imag = tl.zeros((HI, LO), number)
    for first in range(0, STATE, BLOCK):
        n = first + tl.arange(0, BLOCK)
        inside = n < STATE
        x_re, x_im = _load_pairs(x_ptr, copy * STATE + n, inside)
        v_re, v_im = _load_pairs(v_ptr, row * STATE + n, inside)
        lo_re, lo_im = _exponential(x_re[:, None], x_im[:, None], lo[None, :].to(number), DOUBLE)
        hi_re, hi_im = _exponential(x_re[None, :], x_im[None, :], hi[:, None].to(number), DOUBLE)
        w_re = v_re[None, :] * hi_re - v_im[None, :] * hi_im
        w_im = v_re[None, :] * hi_im + v_im[None, :] * hi_re
        real += tl.dot(w_re, lo_re, input_precision=PRECISION, out_dtype=number)
        real -= tl.dot(w_im, lo_im, input_precision=PRECISION, out_dtype=number)
        if not SYMMETRIC:
            imag += tl.dot(w_re, lo_im, input_precision=PRECISION, out_dtype=number)
            imag += tl.dot(w_im, lo_re, input_precision=PRECISION, out_dtype=number)
    step = hi[:, None] + lo[None, :]
    inside_steps = step < LENGTH
    if SYMMETRIC:
        tl.store(out_ptr + row * LENGTH + step, 2.0 * real, mask=inside_steps)
    else:
        tl.store(out_ptr + 2 * (row * LENGTH + step), real, mask=inside_steps)
        tl.store(out_ptr + 2 * (row * LENGTH + step) + 1, imag, mask=inside_steps)


@triton.jit
def _sums_kernel(
    u_ptr,
    x_ptr,
    v_ptr,
    sums_ptr,
    moments_ptr,
    FACTOR,
    COPIES,
    STATE,
    LENGTH,
    TILES,
    HI: tl.constexpr,
    LO: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPLEX: tl.constexpr,
    PLAIN: tl.constexpr,
    MOMENT: tl.constexpr,
    CONJUGATE: tl.constexpr,
    DOUBLE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    number = tl.float64 if DOUBLE else tl.float32
    copy = tl.program_id(0) % COPIES
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(2)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = n < STATE
    x_re, x_im = _load_pairs(x_ptr, copy * STATE + n, inside)
    lo = tl.arange(0, LO)
    lo_re, lo_im = _exponential(x_re[None, :], x_im[None, :], lo[:, None].to(number), DOUBLE)
    s_re = tl.zeros((BLOCK,), number)
    s_im = tl.zeros((BLOCK,), number)
    m_re = tl.zeros((BLOCK,), number)
    m_im = tl.zeros((BLOCK,), number)
    for tile in range(part * TILES, (part + 1) * TILES):
        hi = (tile * HI + tl.arange(0, HI)) * LO
        step = hi[:, None] + lo[None, :]
        inside_steps = step < LENGTH
        hi_re, hi_im = _exponential(x_re[None, :], x_im[None, :], hi[:, None].to(number), DOUBLE)
        if COMPLEX:
            u_re, u_im = _load_pairs(u_ptr, row * LENGTH + step, inside_steps)
            t_re = tl.dot(u_re, lo_re, input_precision=PRECISION, out_dtype=number)
            t_re -= tl.dot(u_im, lo_im, input_precision=PRECISION, out_dtype=number)
            t_im = tl.dot(u_re, lo_im, input_precision=PRECISION, out_dtype=number)
            t_im += tl.dot(u_im, lo_re, input_precision=PRECISION, out_dtype=number)
        else:
            u_re = tl.load(u_ptr + row * LENGTH + step, mask=inside_steps, other=0.0)
            u_im = u_re
            t_re = tl.dot(u_re, lo_re, input_precision=PRECISION, out_dtype=number)
            t_im = tl.dot(u_re, lo_im, input_precision=PRECISION, out_dtype=number)
        s_re += tl.sum(hi_re * t_re - hi_im * t_im, 0)
        s_im += tl.sum(hi_re * t_im + hi_im * t_re, 0)
        if MOMENT:
            weight = lo[None, :].to(number)
            start = hi[:, None].to(number)
            f_re = tl.dot(u_re * weight, lo_re, input_precision=PRECISION, out_dtype=number) + start * t_re
            f_im = tl.dot(u_re * weight, lo_im, input_precision=PRECISION, out_dtype=number) + start * t_im
            if COMPLEX:
                f_re -= tl.dot(u_im * weight, lo_im, input_precision=PRECISION, out_dtype=number)
                f_im += tl.dot(u_im * weight, lo_re, input_precision=PRECISION, out_dtype=number)
            m_re += tl.sum(hi_re * f_re - hi_im * f_im, 0)
            m_im += tl.sum(hi_re * f_im + hi_im * f_re, 0)
    rows = tl.num_programs(0).to(tl.int64)
    place = 2 * ((part * rows + row) * STATE + n)
    if PLAIN:
        tl.store(sums_ptr + place, FACTOR * s_re, mask=inside)
        tl.store(sums_ptr + place + 1, -FACTOR * s_im if CONJUGATE else FACTOR * s_im, mask=inside)
    if MOMENT:
        v_re, v_im = _load_pairs(v_ptr, row * STATE + n, inside)
        tl.store(moments_ptr + place, FACTOR * (v_re * m_re - v_im * m_im), mask=inside)
        tl.store(moments_ptr + place + 1, -FACTOR * (v_re * m_im + v_im * m_re), mask=inside)


def _rows(length: int, most: int, columns: int) -> int:
    """Rows of a tile: a power of two up to `most` that does not reach far beyond a short sequence."""
    return min(most, max(SMALLEST, int(triton.next_power_of_2(triton.cdiv(length, columns)))))


def _facts(x: Tensor) -> dict[str, Any]:
    """Launch options that follow from dtype and state size. Tensor cores compute each product of single precision in three parts of TF32."""
    double = x.dtype == torch.complex128
    block = min(LARGEST_STATE, max(SMALLEST, triton.next_power_of_2(x.shape[-1])))
    return {"BLOCK": block, "DOUBLE": double, "PRECISION": "ieee" if double else "tf32x3", **FUSED}


def _products(v: Tensor, x: Tensor, length: int, conj: bool) -> Tensor:
    """sum_n v exp(x l), `(groups, copies, length)`; twice its real part where `conj`."""
    groups, copies, state = v.shape
    out = torch.empty(groups, copies, length, dtype=v.real.dtype if conj else v.dtype, device=v.device)
    if out.numel() == 0:
        return out
    most, lo = SHORT_PRODUCTS if length <= SHORT or v.dtype == torch.complex128 else PRODUCTS
    hi = _rows(length, most, lo)
    grid = (triton.cdiv(length, hi * lo), copies, groups)
    target = out if conj else torch.view_as_real(out)
    with torch.cuda.device_of(out):
        _products_kernel[grid](pairs(v), pairs(x), target, copies, state, length, HI=hi, LO=lo, SYMMETRIC=conj, **_facts(x))
    return out


def _sums(
    u: Tensor, x: Tensor, v: Tensor | None, *, plain: bool, conjugate: bool = False, factor: float = 1.0
) -> tuple[Tensor | None, Tensor | None]:
    """`factor * sum_l u_l exp(x l)` `(groups, copies, state)`, conjugated on request, and `factor * sum_groups conj(v sum_l l u_l exp(x l))`.

    The first is computed where `plain`, the second, `(copies, state)`, where there is a `v`.
    """
    groups, copies, length = u.shape
    state = x.shape[-1]
    facts = _facts(x)
    most, lo = SUMS
    hi = _rows(length, most, lo)
    blocks = triton.cdiv(state, facts["BLOCK"])
    tiles = triton.cdiv(length, hi * lo)
    parts = min(tiles, max(1, WORTH_SPLITTING // max(1, groups * copies * blocks)))
    tiles_of_part = triton.cdiv(tiles, parts)
    parts = triton.cdiv(tiles, tiles_of_part)
    # What is not wanted is not written, but the launch takes a pointer.
    sums = torch.empty(parts, groups, copies, state, dtype=x.dtype, device=x.device)
    moments = sums if v is None else torch.empty_like(sums)
    drive = pairs(u) if u.is_complex() else u.detach().contiguous()
    poles = pairs(x)
    flags = {"HI": hi, "LO": lo, "COMPLEX": u.is_complex(), "PLAIN": plain, "MOMENT": v is not None, "CONJUGATE": conjugate}
    with torch.cuda.device_of(sums):
        _sums_kernel[(groups * copies, blocks, parts)](
            drive,
            poles,
            poles if v is None else pairs(v),
            torch.view_as_real(sums),
            torch.view_as_real(moments),
            factor,
            copies,
            state,
            length,
            tiles_of_part,
            **flags,
            **facts,
        )
    total = (sums[0] if parts == 1 else sums.sum(0)) if plain else None
    if v is None:
        return total, None
    return total, moments[0, 0] if parts * groups == 1 else moments.sum((0, 1))


def _plain_sums(u: Tensor, x: Tensor) -> Tensor:
    """sum_l u_l exp(x l), `(groups, copies, state)`."""
    total = _sums(u, x, None, plain=True)[0]
    return x.new_zeros(*u.shape[:2], x.shape[-1]) if total is None else total


class _Vandermonde(torch.autograd.Function):
    """Products with their derivatives; a second derivative goes through plain PyTorch."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, x: Tensor, length: int, conj: bool) -> Tensor:
        ctx.save_for_backward(v, x)
        ctx.length, ctx.conj = length, conj
        return _products(v, x, length, conj)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        (cotangent,) = cotangents
        v, x = ctx.saved_tensors
        if torch.is_grad_enabled():
            found = second_derivative(lambda v, x: naive.vandermonde(v, x, ctx.length, conj=ctx.conj), (v, x), cotangent)
            return *found, None, None
        drive = cotangent if ctx.conj else cotangent.conj()
        weights = v if ctx.needs_input_grad[1] else None
        by_v, by_x = _sums(drive, x, weights, plain=ctx.needs_input_grad[0], conjugate=True, factor=2.0 if ctx.conj else 1.0)
        return by_v, by_x, None, None


class _Transpose(torch.autograd.Function):
    """The transposed sums with their derivatives."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(u, x)
        return _plain_sums(u, x)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        (cotangent,) = cotangents
        u, x = ctx.saved_tensors
        if torch.is_grad_enabled():
            return second_derivative(naive.vandermonde_transpose, (u, x), cotangent)
        by_u = by_x = None
        if ctx.needs_input_grad[0]:
            # The conjugate of sum_n conj(cotangent_n) exp(x_n l); half of the symmetric form where u is real.
            by_u = _products(cotangent.conj(), x, u.shape[-1], not u.is_complex())
            by_u = by_u.conj() if u.is_complex() else 0.5 * by_u
        if ctx.needs_input_grad[1]:
            by_x = _sums(u, x, cotangent.conj(), plain=False)[1]
        return by_u, by_x


def vandermonde(v: Tensor, x: Tensor, length: int, *, conj: bool) -> Tensor:
    """`(groups, copies, length)` from v `(groups, copies, state)` and x `(copies, state)`; see `pararnn_s4.kernels.api.vandermonde`."""
    if torch.is_grad_enabled() and (v.requires_grad or x.requires_grad):
        result: Tensor = _Vandermonde.apply(v, x, length, conj)
        return result
    return _products(v, x, length, conj)


def vandermonde_transpose(u: Tensor, x: Tensor) -> Tensor:
    """`(groups, copies, state)` from u `(groups, copies, length)` and x `(copies, state)`; see `pararnn_s4.kernels.api.vandermonde_transpose`."""
    if torch.is_grad_enabled() and (u.requires_grad or x.requires_grad):
        result: Tensor = _Transpose.apply(u, x)
        return result
    return _plain_sums(u, x)
