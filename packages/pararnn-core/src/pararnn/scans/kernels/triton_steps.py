"""What the kernels of the diagonal scan share: finding a sequence, reading steps as they lie, scanning a tile, storing states and gradients.

A number travels as its real and imaginary part; of real numbers the second is a copy that nothing reads. Pointers are those of the first step
of a sequence and the first lane of a program, and strides go along the walk, so that a walk towards earlier times has negative ones. A tile
begins at the step `begin`, counted from the start of its sequence; `near` (steps from there, a column) and `lane` (a row) broadcast against each
other. Only the place of a tile needs 64 bits, what is in it is counted in 32 where strides allow.

A program is one warp with a thread for each lane, so that all steps of a lane lie in one thread and `follow` walks them one after the other, as
the definition does. Triton deals them out so where it believes lanes to lie side by side, which `spread` tells it whether they do or not, but not
aligned: of the pointers it knows nothing. Strides along time it knows, and needs no register for each place of a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Known to be aligned, they would let Triton give a thread several lanes and only some of their steps.
UNALIGNED = ("a_ptr", "b_ptr", "states_ptr", "out_ptr", "map_grad_ptr", "words_ptr")


@triton.jit
def spread(near, time_stride, lane, lane_stride):
    """Places of a tile `(time, lanes)`, said to go one by one along lanes."""
    return tl.max_contiguous(near * time_stride + lane * lane_stride, [1, lane.shape[1]])


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
def bounds_of(bounds_ptr, segment, TIME, PACKED: tl.constexpr):
    """The first step of a segment and the one after its last."""
    low = tl.cast(segment, tl.int64) * 0
    high = low + TIME
    if PACKED:
        low = tl.load(bounds_ptr + segment)
        high = tl.load(bounds_ptr + segment + 1)
    return low, high


@triton.jit
def enter(ptr, row_stride, time_stride, lane_stride, row, whole, low, high, REVERSE: tl.constexpr):
    """Where the walk through the steps `low` to `high` of a row begins, at the lane `whole`, and its stride."""
    step = tl.cast(time_stride, tl.int64)
    first = low
    if REVERSE:
        step = -step
        first = high - 1
    return ptr + row * row_stride + first * time_stride + whole * lane_stride, step


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
    OFFSET: tl.constexpr,
):
    """Maps and terms of steps, those of the identity where `mask` is false; with SKIP_FIRST the first map is zero, whatever lies there."""
    far = tl.cast(begin, tl.int64)
    step = begin + near
    known = mask
    if SKIP_FIRST:
        known = mask & (step > 0)
    a_re, a_im = read(a_ptr + far * a_step, spread(near, a_step.to(OFFSET), lane, a_lane), known, 1.0, COMPLEX, CARRY)
    if COMPLEX and CONJ:
        a_im = -a_im
    if SKIP_FIRST:
        a_re = tl.where(step == 0, 0.0, a_re)
        a_im = tl.where(step == 0, 0.0, a_im)
    b_re, b_im = read(b_ptr + far * b_step, spread(near, b_step.to(OFFSET), lane, b_lane), mask, 0.0, COMPLEX, CARRY)
    return a_re, a_im, b_re, b_im


@triton.jit
def states_further(
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
    HAS_START: tl.constexpr,
    COMPLEX: tl.constexpr,
    CARRY: tl.constexpr,
    OFFSET: tl.constexpr,
):
    """Where a walk back through time meets costates, the states that maps acted on: those one step on, and the initial state at the end."""
    step = begin + near
    further = states_ptr + (tl.cast(begin, tl.int64) + 1) * states_step
    s_re, s_im = read(further, spread(near, states_step.to(OFFSET), lane, states_lane), mask & (step + 1 < length), 0.0, COMPLEX, CARRY)
    if HAS_START:
        s_re = tl.where(step + 1 == length, start_re[None, :], s_re)
        s_im = tl.where(step + 1 == length, start_im[None, :], s_im)
    return s_re, s_im


@triton.jit
def write_states(
    out_ptr,
    out_step,
    map_grad_ptr,
    begin,
    near,
    lane,
    mask,
    h_re,
    h_im,
    s_re,
    s_im,
    MAP_GRAD: tl.constexpr,
    COMPLEX: tl.constexpr,
    OFFSET: tl.constexpr,
):
    """Store what steps lead to. With MAP_GRAD they are costates `h`, and the gradients of maps follow from the states `s` that maps acted on."""
    far = tl.cast(begin, tl.int64) * out_step
    offset = spread(near, out_step.to(OFFSET), lane, 2 if COMPLEX else 1)
    if MAP_GRAD:
        zero = tl.zeros_like(h_re)
        g_re, g_im = multiply_add(h_re, h_im, s_re, -s_im, zero, zero, COMPLEX)
        write(map_grad_ptr + far, offset, g_re, g_im, mask, COMPLEX)
    write(out_ptr + far, offset, h_re, h_im, mask, COMPLEX)


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
def follow(a_re, a_im, b_re, b_im, near, h_re, h_im, COMPLEX: tl.constexpr):
    """The states of a tile that starts from `h`, which goes into its first term: no product of maps has a part in them."""
    first_re, first_im = multiply_add(a_re, a_im, h_re[None, :], h_im[None, :], b_re, b_im, COMPLEX)
    b_re = tl.where(near == 0, first_re, b_re)
    if COMPLEX:
        b_im = tl.where(near == 0, first_im, b_im)
    _p_re, _p_im, x_re, x_im = scan_tile(a_re, a_im, b_re, b_im, COMPLEX)
    return x_re, x_im


@triton.jit
def last_of(re, im, near, HEIGHT: tl.constexpr, COMPLEX: tl.constexpr):
    """The last row of a tile."""
    last_re = tl.sum(tl.where(near == HEIGHT - 1, re, 0.0), 0)
    last_im = last_re
    if COMPLEX:
        last_im = tl.sum(tl.where(near == HEIGHT - 1, im, 0.0), 0)
    return last_re, last_im
