"""Cauchy products in one launch: sum over n of v_n / (z_l - w_n), with or without the conjugate partners.

A pair of conjugate terms is one fraction, (2 Re(v) zeta - 2 Im(v) Im(w)) / (zeta^2 + Im(w)^2) with zeta = z - Re(w); its denominator is
computed from the product (Im(z) - Im(w)) (Im(z) + Im(w)), never expanded, so that nodes beside a pole keep their digits. `groups`
(several v at the same w and z) share all of it but four operations.

Layout: v (groups, copies, state), w (copies, state), z (1 or copies, length), result (groups, copies, length); complex numbers as pairs.
Forward: one program owns BLOCK nodes of one copy and walks the state. Backward: one program owns BLOCK_STATE of the state and walks the
nodes of a part; parts are added afterwards, in a fixed order. Nothing of size (state, length) exists. Limits: |z - w| between 1e-9 and 1e9
times the largest |z|, |w| of a program in single precision. Oracle: kernels/naive.py.
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

# Nodes of a program, as measured; few where there are few.
BLOCK_NODES = 1024
SHORT_NODES = 512
SHORT = 4096
BLOCK_STATE = 16
BLOCK_WALK = 64
# Groups that one program serves at once; each keeps its sums in registers.
GROUPS_AT_ONCE = 4


def probe() -> tuple[str, ...] | None:
    """Compute a small product and its gradients."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = reasons(Request.of("s4/cauchy", device=device, dtype="complex64"))
    if found:
        return found
    v, w = (torch.full((1, 2, 3), -0.1 + 0.2j, device=device, requires_grad=True) for _ in range(2))
    torch.view_as_real(cauchy(v, torch.full((1, 5), 1j, device=device), w[0], conj=True)).sum().backward()
    return None


@triton.jit
def _load_pairs(base, index, mask):
    """The real and imaginary parts at `index`, zero where `mask` is false."""
    return tl.load(base + 2 * index, mask=mask, other=0.0), tl.load(base + 2 * index + 1, mask=mask, other=0.0)


@triton.jit
def _pair_fraction(z_re, z_im, w_re, w_im):
    """The real part of zeta = z - Re(w), and 1 / ((z - w) (z - conj(w)))."""
    zeta_re = z_re - w_re
    real = zeta_re * zeta_re - (z_im - w_im) * (z_im + w_im)
    imag = 2.0 * zeta_re * z_im
    inverse = 1.0 / (real * real + imag * imag)
    return zeta_re, real * inverse, -imag * inverse


@triton.jit
def _fraction(z_re, z_im, w_re, w_im):
    """1 / (z - w)."""
    real = z_re - w_re
    imag = z_im - w_im
    inverse = 1.0 / (real * real + imag * imag)
    return real * inverse, -imag * inverse


@triton.jit
def _products_kernel(
    v_ptr,
    z_ptr,
    w_ptr,
    out_ptr,
    COPIES,
    STATE,
    LENGTH,
    Z_STRIDE,
    GROUPS,
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    number = tl.float64 if DOUBLE else tl.float32
    copy = tl.program_id(1)
    group = tl.program_id(2) * AT_ONCE + tl.arange(0, AT_ONCE)
    inside_group = group < GROUPS
    row = group.to(tl.int64) * COPIES + copy
    node = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = node < LENGTH
    z_re, z_im = _load_pairs(z_ptr, copy.to(tl.int64) * Z_STRIDE + tl.minimum(node, LENGTH - 1), True)
    z_re = z_re[None, :]
    z_im = z_im[None, :]
    real = tl.zeros((AT_ONCE, BLOCK), number)
    imag = tl.zeros((AT_ONCE, BLOCK), number)
    for n in range(STATE):
        w_re, w_im = _load_pairs(w_ptr, copy * STATE + n, True)
        v_re, v_im = _load_pairs(v_ptr, row * STATE + n, inside_group)
        v_re = v_re[:, None]
        v_im = v_im[:, None]
        if SYMMETRIC:
            zeta_re, f_re, f_im = _pair_fraction(z_re, z_im, w_re, w_im)
            top_re = v_re * zeta_re - v_im * w_im
            top_im = v_re * z_im
            real += top_re * f_re - top_im * f_im
            imag += top_re * f_im + top_im * f_re
        else:
            f_re, f_im = _fraction(z_re, z_im, w_re, w_im)
            real += v_re * f_re - v_im * f_im
            imag += v_re * f_im + v_im * f_re
    factor = 2.0 if SYMMETRIC else 1.0
    place = out_ptr + 2 * (row[:, None] * LENGTH + node[None, :])
    mask = inside_group[:, None] & inside[None, :]
    tl.store(place, factor * real, mask=mask)
    tl.store(place + 1, factor * imag, mask=mask)


@triton.jit
def _cotangents(g_re, g_im, f_re, f_im, h_re, h_im, SYMMETRIC: tl.constexpr):
    """The sum g conj(f) + conj(g) h, the part of a cotangent that a term f of v and a term h of conj(v) carry; h is absent where not symmetric."""
    real = g_re * f_re + g_im * f_im
    imag = g_im * f_re - g_re * f_im
    if SYMMETRIC:
        real += g_re * h_re + g_im * h_im
        imag += g_re * h_im - g_im * h_re
    return real, imag


@triton.jit
def _sums_kernel(
    g_ptr,
    v_ptr,
    z_ptr,
    w_ptr,
    by_v_ptr,
    by_w_ptr,
    COPIES,
    STATE,
    LENGTH,
    Z_STRIDE,
    STEPS,
    BLOCK: tl.constexpr,
    WALK: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    number = tl.float64 if DOUBLE else tl.float32
    row = tl.program_id(0).to(tl.int64)
    copy = tl.program_id(0) % COPIES
    part = tl.program_id(2)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside_state = n < STATE
    # Past the ends the last pole and node stand in: they meet no others than they do anyway.
    w_re, w_im = _load_pairs(w_ptr, copy * STATE + tl.minimum(n, STATE - 1), True)
    w_re = w_re[:, None]
    w_im = w_im[:, None]
    a_re = tl.zeros((BLOCK, WALK), number)
    a_im = tl.zeros((BLOCK, WALK), number)
    b_re = tl.zeros((BLOCK, WALK), number)
    b_im = tl.zeros((BLOCK, WALK), number)
    for step in range(part * STEPS, (part + 1) * STEPS):
        node = step * WALK + tl.arange(0, WALK)
        inside = node < LENGTH
        z_re, z_im = _load_pairs(z_ptr, copy.to(tl.int64) * Z_STRIDE + tl.minimum(node, LENGTH - 1), True)
        g_re, g_im = _load_pairs(g_ptr, row * LENGTH + node, inside)
        z_re = z_re[None, :]
        z_im = z_im[None, :]
        g_re = g_re[None, :]
        g_im = g_im[None, :]
        f_re, f_im = _fraction(z_re, z_im, w_re, w_im)
        h_re = f_re
        h_im = f_im
        if SYMMETRIC:
            h_re, h_im = _fraction(z_re, z_im, w_re, -w_im)
        real, imag = _cotangents(g_re, g_im, f_re, f_im, h_re, h_im, SYMMETRIC)
        a_re += real
        a_im += imag
        real, imag = _cotangents(g_re, g_im, f_re * f_re - f_im * f_im, 2.0 * f_re * f_im, h_re * h_re - h_im * h_im, 2.0 * h_re * h_im, SYMMETRIC)
        b_re += real
        b_im += imag
    rows = tl.num_programs(0).to(tl.int64)
    place = 2 * ((part * rows + row) * STATE + n)
    v_re, v_im = _load_pairs(v_ptr, row * STATE + n, inside_state)
    square_re = tl.sum(b_re, 1)
    square_im = tl.sum(b_im, 1)
    tl.store(by_v_ptr + place, tl.sum(a_re, 1), mask=inside_state)
    tl.store(by_v_ptr + place + 1, tl.sum(a_im, 1), mask=inside_state)
    tl.store(by_w_ptr + place, v_re * square_re + v_im * square_im, mask=inside_state)
    tl.store(by_w_ptr + place + 1, v_re * square_im - v_im * square_re, mask=inside_state)


@triton.jit
def _node_kernel(
    g_ptr,
    v_ptr,
    z_ptr,
    w_ptr,
    out_ptr,
    COPIES,
    STATE,
    LENGTH,
    Z_STRIDE,
    GROUPS,
    BLOCK: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    number = tl.float64 if DOUBLE else tl.float32
    copy = tl.program_id(1)
    node = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = node < LENGTH
    z_re, z_im = _load_pairs(z_ptr, copy.to(tl.int64) * Z_STRIDE + tl.minimum(node, LENGTH - 1), True)
    real = tl.zeros((BLOCK,), number)
    imag = tl.zeros((BLOCK,), number)
    for group in range(GROUPS):
        row = copy.to(tl.int64) + group * COPIES
        d_re = tl.zeros((BLOCK,), number)
        d_im = tl.zeros((BLOCK,), number)
        for n in range(STATE):
            w_re, w_im = _load_pairs(w_ptr, copy * STATE + n, True)
            v_re, v_im = _load_pairs(v_ptr, row * STATE + n, True)
            f_re, f_im = _fraction(z_re, z_im, w_re, w_im)
            s_re = f_re * f_re - f_im * f_im
            s_im = 2.0 * f_re * f_im
            d_re += v_re * s_re - v_im * s_im
            d_im += v_re * s_im + v_im * s_re
            if SYMMETRIC:
                f_re, f_im = _fraction(z_re, z_im, w_re, -w_im)
                s_re = f_re * f_re - f_im * f_im
                s_im = 2.0 * f_re * f_im
                d_re += v_re * s_re + v_im * s_im
                d_im += v_re * s_im - v_im * s_re
        g_re, g_im = _load_pairs(g_ptr, row * LENGTH + node, inside)
        real -= g_re * d_re + g_im * d_im
        imag -= g_im * d_re - g_re * d_im
    place = out_ptr + 2 * (copy.to(tl.int64) * LENGTH + node)
    tl.store(place, real, mask=inside)
    tl.store(place + 1, imag, mask=inside)


def _stride(z: Tensor) -> int:
    """How far the nodes of one copy lie behind those of the copy before, in complex numbers; zero where all share them."""
    return 0 if z.shape[0] == 1 else z.shape[1]


def _products(v: Tensor, z: Tensor, w: Tensor, conj: bool) -> Tensor:
    """The products `(groups, copies, length)`."""
    groups, copies, state = v.shape
    length = z.shape[-1]
    out = torch.empty(groups, copies, length, dtype=v.dtype, device=v.device)
    if out.numel() == 0:
        return out
    at_once = min(GROUPS_AT_ONCE, triton.next_power_of_2(groups))
    block = (SHORT_NODES if length <= SHORT else BLOCK_NODES) // at_once
    grid = (triton.cdiv(length, block), copies, triton.cdiv(groups, at_once))
    flags = {"BLOCK": block, "AT_ONCE": at_once, "SYMMETRIC": conj, "DOUBLE": v.dtype == torch.complex128, **FUSED}
    with torch.cuda.device_of(out):
        _products_kernel[grid](pairs(v), pairs(z), pairs(w), torch.view_as_real(out), copies, state, length, _stride(z), groups, **flags)
    return out


def _sums(g: Tensor, v: Tensor, z: Tensor, w: Tensor, conj: bool) -> tuple[Tensor, Tensor]:
    """The gradients of v and of w where the result has cotangent g `(groups, copies, length)`."""
    groups, copies, length = g.shape
    state = w.shape[-1]
    blocks = triton.cdiv(state, BLOCK_STATE)
    steps = triton.cdiv(length, BLOCK_WALK)
    parts = min(steps, max(1, 4 * WORTH_SPLITTING // max(1, groups * copies * blocks)))
    steps_of_part = triton.cdiv(steps, parts)
    parts = triton.cdiv(steps, steps_of_part)
    by_v = torch.empty(parts, groups, copies, state, dtype=g.dtype, device=g.device)
    by_w = torch.empty_like(by_v)
    flags = {"BLOCK": BLOCK_STATE, "WALK": BLOCK_WALK, "SYMMETRIC": conj, "DOUBLE": g.dtype == torch.complex128, **FUSED}
    with torch.cuda.device_of(by_v):
        _sums_kernel[(groups * copies, blocks, parts)](
            pairs(g),
            pairs(v),
            pairs(z),
            pairs(w),
            torch.view_as_real(by_v),
            torch.view_as_real(by_w),
            copies,
            state,
            length,
            _stride(z),
            steps_of_part,
            **flags,
        )
    return by_v[0] if parts == 1 else by_v.sum(0), by_w[0, 0] if parts * groups == 1 else by_w.sum((0, 1))


def _node_gradient(g: Tensor, v: Tensor, z: Tensor, w: Tensor, conj: bool) -> Tensor:
    """The gradient of the nodes, of z's shape."""
    groups, copies, length = g.shape
    out = torch.empty(copies, length, dtype=g.dtype, device=g.device)
    flags = {"BLOCK": SHORT_NODES, "SYMMETRIC": conj, "DOUBLE": g.dtype == torch.complex128, **FUSED}
    with torch.cuda.device_of(out):
        _node_kernel[(triton.cdiv(length, SHORT_NODES), copies)](
            pairs(g), pairs(v), pairs(z), pairs(w), torch.view_as_real(out), copies, w.shape[-1], length, _stride(z), groups, **flags
        )
    return out if z.shape[0] == copies else out.sum(0, keepdim=True)


class _Cauchy(torch.autograd.Function):
    """Products with their derivatives; a second derivative goes through plain PyTorch."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, z: Tensor, w: Tensor, conj: bool) -> Tensor:
        ctx.save_for_backward(v, z, w)
        ctx.conj = conj
        return _products(v, z, w, conj)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        (cotangent,) = cotangents
        v, z, w = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *second_derivative(lambda v, z, w: naive.cauchy(v, z, w, conj=ctx.conj), (v, z, w), cotangent), None
        by_v = by_z = by_w = None
        if cotangent.numel() == 0 or v.numel() == 0:
            return torch.zeros_like(v), torch.zeros_like(z), torch.zeros_like(w), None
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[2]:
            by_v, by_w = _sums(cotangent, v, z, w, ctx.conj)
        if ctx.needs_input_grad[1]:
            by_z = _node_gradient(cotangent, v, z, w, ctx.conj)
        return by_v, by_z, by_w, None


def cauchy(v: Tensor, z: Tensor, w: Tensor, *, conj: bool) -> Tensor:
    """`(groups, copies, length)` from v `(groups, copies, state)`, z `(1 or copies, length)`, w `(copies, state)`; see `kernels.api.cauchy`."""
    if torch.is_grad_enabled() and (v.requires_grad or z.requires_grad or w.requires_grad):
        result: Tensor = _Cauchy.apply(v, z, w, conj)
        return result
    return _products(v, z, w, conj)
