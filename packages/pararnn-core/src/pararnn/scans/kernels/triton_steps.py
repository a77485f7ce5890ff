"""What the kernels of the diagonal scan share: reading steps as they lie, scanning a tile, doubting it, and walking step by step.

A number travels as its real and imaginary part; of real numbers the second is a copy that nothing reads. Pointers are those of the first step
of a sequence and the first lane of a program, and strides go along the walk, so that a walk towards earlier times has negative ones. A tile
begins at the step `begin`, counted from the start of its sequence; `near` (steps from there) and `lane` broadcast against each other: a column and
a row for a tile, two vectors for a single step. Only the place of a tile needs 64 bits, what is in it is counted in 32 where strides allow.

A tile is scanned by products of its maps. These may overflow or underflow where the states do not; `doubtful` finds such tiles, and `walk_on`
computes the states behind them by the definition.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Steps that `walk_on` reads ahead.
AHEAD = tl.constexpr(8)


@triton.jit
def read(ptr, offset, mask, other, COMPLEX: tl.constexpr, CARRY: tl.constexpr):
    """The numbers at `offset`, `other` where `mask` is false."""
    real = tl.load(ptr + offset, mask=mask, other=other).to(CARRY)
    imag = real
    if COMPLEX:
        imag = tl.load(ptr + offset + 1, mask=mask, other=0.0).to(CARRY)
    return real, imag


@triton.jit
def write(ptr, offset, real, imag, mask, COMPLEX: tl.constexpr):
    """Store numbers at `offset`, rounded to what the memory holds."""
    tl.store(ptr + offset, real.to(ptr.dtype.element_ty), mask=mask)
    if COMPLEX:
        tl.store(ptr + offset + 1, imag.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def multiply_add(p_re, p_im, s_re, s_im, x_re, x_im, COMPLEX: tl.constexpr):
    """`p s + x`."""
    real = p_re * s_re + x_re
    imag = x_im
    if COMPLEX:
        real = real - p_im * s_im
        imag = p_re * s_im + (p_im * s_re + x_im)
    return real, imag


@triton.jit
def maps_and_terms(
    a_ptr,
    a_step,
    a_lane,
    b_ptr,
    b_step,
    b_lane,
    begin,
    near,
    lane,
    mask,
    SKIP_FIRST: tl.constexpr,
    CONJ: tl.constexpr,
    COMPLEX: tl.constexpr,
    CARRY: tl.constexpr,
):
    """Maps and terms of steps, those of the identity where `mask` is false; with SKIP_FIRST the first map is zero, whatever lies there."""
    far = tl.cast(begin, tl.int64)
    step = begin + near
    known = mask
    if SKIP_FIRST:
        known = mask & (step > 0)
    a_re, a_im = read(a_ptr + far * a_step, near * a_step + lane * a_lane, known, 1.0, COMPLEX, CARRY)
    if COMPLEX and CONJ:
        a_im = -a_im
    if SKIP_FIRST:
        a_re = tl.where(step == 0, 0.0, a_re)
        a_im = tl.where(step == 0, 0.0, a_im)
    b_re, b_im = read(b_ptr + far * b_step, near * b_step + lane * b_lane, mask, 0.0, COMPLEX, CARRY)
    return a_re, a_im, b_re, b_im


@triton.jit
def write_states(
    out_ptr,
    out_step,
    map_grad_ptr,
    states_ptr,
    states_step,
    states_lane,
    start_re,
    start_im,
    begin,
    near,
    lane,
    mask,
    length,
    h_re,
    h_im,
    MAP_GRAD: tl.constexpr,
    HAS_START: tl.constexpr,
    COMPLEX: tl.constexpr,
    CARRY: tl.constexpr,
):
    """Store what steps lead to. With MAP_GRAD they are costates; the gradients of maps follow from states one step on."""
    far = tl.cast(begin, tl.int64)
    offset = near * out_step + lane * (2 if COMPLEX else 1)
    write(out_ptr + far * out_step, offset, h_re, h_im, mask, COMPLEX)
    if MAP_GRAD:
        step = begin + near
        further = states_ptr + (far + 1) * states_step
        s_re, s_im = read(further, near * states_step + lane * states_lane, mask & (step + 1 < length), 0.0, COMPLEX, CARRY)
        if HAS_START:
            s_re = tl.where(step + 1 == length, start_re, s_re)
            s_im = tl.where(step + 1 == length, start_im, s_im)
        zero = tl.zeros_like(h_re)
        g_re, g_im = multiply_add(h_re, h_im, s_re, -s_im, zero, zero, COMPLEX)
        write(map_grad_ptr + far * out_step, offset, g_re, g_im, mask, COMPLEX)


@triton.jit
def _combine(a_early, b_early, a_late, b_late):
    return a_late * a_early, a_late * b_early + b_late


@triton.jit
def _combine_complex(a_re, a_im, b_re, b_im, late_re, late_im, term_re, term_im):
    return (
        late_re * a_re - late_im * a_im,
        late_re * a_im + late_im * a_re,
        late_re * b_re - late_im * b_im + term_re,
        late_re * b_im + late_im * b_re + term_im,
    )


@triton.jit
def scan_tile(a_re, a_im, b_re, b_im, COMPLEX: tl.constexpr):
    """For each step of a tile `(time, lanes)`, the product of the maps so far and the state that follows from zero."""
    if COMPLEX:
        p_re, p_im, x_re, x_im = tl.associative_scan((a_re, a_im, b_re, b_im), 0, _combine_complex)
    else:
        p_re, x_re = tl.associative_scan((a_re, b_re), 0, _combine)
        p_im = p_re
        x_im = x_re
    return p_re, p_im, x_re, x_im


@triton.jit
def last_of(tile, HEIGHT: tl.constexpr):
    """The last row of a tile."""
    at = tl.arange(0, HEIGHT)[:, None] == HEIGHT - 1
    return tl.sum(tl.where(at, tile, 0.0), 0)


@triton.jit
def weigh(a_re, a_im, p_re, p_im, h_re, h_im, COMPLEX: tl.constexpr):
    """For each lane of a tile the smallest product of its maps so far, and the bits by which those above one can grow; 0 and 4096 if not finite."""
    infinity = float("inf")
    whole = (tl.abs(p_re) < infinity) & (tl.abs(h_re) < infinity)
    product = tl.abs(p_re)
    if COMPLEX:
        whole = whole & (tl.abs(p_im) < infinity) & (tl.abs(h_im) < infinity)
        product = tl.maximum(product, tl.abs(p_im))
        bits = 0.5 * tl.log2(tl.maximum(a_re * a_re + a_im * a_im, 1.0))
    else:
        bits = tl.log2(tl.maximum(tl.abs(a_re), 1.0))
    return tl.min(tl.where(whole, product, 0.0), 0), tl.sum(tl.where(whole, bits, 4096.0), 0)


@triton.jit
def verdict(smallest, growth, TINY: tl.constexpr, GROWTH: tl.constexpr):
    """1 where a product lost digits that later maps may bring back, or something is not finite; else 0.

    The product over any part of a stretch is at least that from its beginning over what the maps can grow by. Below 2**TINY it may have lost
    digits; unless maps grow by more than 2**GROWTH, that does not show.
    """
    lost = smallest < tl.exp2(tl.minimum(growth + TINY, 0.0))
    return tl.max((lost & (growth > GROWTH)).to(tl.int32), 0)


@triton.jit
def doubtful(a_re, a_im, p_re, p_im, h_re, h_im, TINY: tl.constexpr, GROWTH: tl.constexpr, COMPLEX: tl.constexpr):
    """The verdict on a single tile."""
    smallest, growth = weigh(a_re, a_im, p_re, p_im, h_re, h_im, COMPLEX)
    return verdict(smallest, growth, TINY, GROWTH)


@triton.jit
def not_finite(tile):
    """1 where a number of a tile is not finite, else 0."""
    return tl.max(tl.max((tl.abs(tile) < float("inf")).to(tl.int32) ^ 1, 1), 0)


@triton.jit
def walk_on(
    a_ptr,
    a_step,
    a_lane,
    b_ptr,
    b_step,
    b_lane,
    out_ptr,
    out_step,
    map_grad_ptr,
    states_ptr,
    states_step,
    states_lane,
    start_re,
    start_im,
    first,
    length,
    lane,
    inside,
    h_re,
    h_im,
    SKIP_FIRST: tl.constexpr,
    MAP_GRAD: tl.constexpr,
    HAS_START: tl.constexpr,
    CONJ: tl.constexpr,
    COMPLEX: tl.constexpr,
    CARRY: tl.constexpr,
):
    """The definition: from the state before step `first` to the end, one step after the other."""
    here = lane * 0
    for begin in range(first, length, AHEAD):
        for ahead in tl.static_range(AHEAD):
            step = begin + ahead
            mask = inside & (step + here < length)
            a_re, a_im, b_re, b_im = maps_and_terms(
                a_ptr, a_step, a_lane, b_ptr, b_step, b_lane, step, here, lane, mask, SKIP_FIRST, CONJ, COMPLEX, CARRY
            )
            h_re, h_im = multiply_add(a_re, a_im, h_re, h_im, b_re, b_im, COMPLEX)
            write_states(
                out_ptr,
                out_step,
                map_grad_ptr,
                states_ptr,
                states_step,
                states_lane,
                start_re,
                start_im,
                step,
                here,
                lane,
                mask,
                length,
                h_re,
                h_im,
                MAP_GRAD,
                HAS_START,
                COMPLEX,
                CARRY,
            )
