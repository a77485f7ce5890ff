"""The diagonal scan in one pass over memory, for many lanes: a program owns channels of one sequence and goes through its time tile by tile.

Layout: maps and terms are `(rows, time, state)` with any strides, the result is contiguous; packed sequences lie along time between `bounds`. A
program carries one number a channel, and computes the states one after the other, as the definition does; while it does so the next three
tiles are on their way to its registers. With ONLY_MARKED it works only on what another kernel has marked as wrong. Limits: below 2**31 steps. Oracle:
`pararnn.scans.reference`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pararnn.scans.kernels.triton_steps import UNALIGNED, bounds_of, enter, follow, last_of, maps_and_terms, read, states_further, write_states


@triton.jit
def _fetch(
    sources,
    begin,
    tile,
    SKIP_FIRST: tl.constexpr,
    MAP_GRAD: tl.constexpr,
    HAS_START: tl.constexpr,
    CONJ: tl.constexpr,
    COMPLEX: tl.constexpr,
    CARRY: tl.constexpr,
    OFFSET: tl.constexpr,
):
    """All that is read for a tile: maps, terms, and the states that maps acted on where they are needed."""
    a_ptr, a_step, a_lane, b_ptr, b_step, b_lane, states_ptr, states_step, states_lane, start_re, start_im = sources
    near, lane, inside, length = tile
    mask = (begin + near < length) & inside[None, :]
    a_re, a_im, b_re, b_im = maps_and_terms(
        a_ptr, a_step, a_lane, b_ptr, b_step, b_lane, begin, near, lane, mask, SKIP_FIRST, CONJ, COMPLEX, CARRY, OFFSET
    )
    s_re = a_re
    s_im = a_im
    if MAP_GRAD:
        s_re, s_im = states_further(
            states_ptr, states_step, states_lane, start_re, start_im, begin, near, lane, mask, length, HAS_START, COMPLEX, CARRY, OFFSET
        )
    return a_re, a_im, b_re, b_im, s_re, s_im


@triton.jit
def _walk(
    fetched,
    h_re,
    h_im,
    out_ptr,
    out_step,
    map_grad_ptr,
    begin,
    tile,
    MAP_GRAD: tl.constexpr,
    COMPLEX: tl.constexpr,
    OFFSET: tl.constexpr,
    BLOCK_TIME: tl.constexpr,
):
    """Walk a tile from `h`, store what is asked for, and return where it ends."""
    a_re, a_im, b_re, b_im, s_re, s_im = fetched
    near, lane, inside, length = tile
    x_re, x_im = follow(a_re, a_im, b_re, b_im, near, h_re, h_im, COMPLEX)
    mask = (begin + near < length) & inside[None, :]
    write_states(out_ptr, out_step, map_grad_ptr, begin, near, lane, mask, x_re, x_im, s_re, s_im, MAP_GRAD, COMPLEX, OFFSET)
    return last_of(x_re, x_im, near, BLOCK_TIME, COMPLEX)


@triton.jit(do_not_specialize_on_alignment=UNALIGNED)
def walk_kernel(
    a_ptr,
    a_row,
    a_time: tl.constexpr,
    a_lane,
    b_ptr,
    b_row,
    b_time: tl.constexpr,
    b_lane,
    start_ptr,
    start_row,
    start_segment,
    start_lane,
    states_ptr,
    states_row,
    states_time: tl.constexpr,
    states_lane,
    out_ptr,
    out_row,
    out_time: tl.constexpr,
    map_grad_ptr,
    bounds_ptr,
    marks_ptr,
    ROWS,
    SEGMENTS,
    TIME,
    STATE,
    HAS_START: tl.constexpr,
    COSTATE: tl.constexpr,
    MAP_GRAD: tl.constexpr,
    REVERSE: tl.constexpr,
    PACKED: tl.constexpr,
    CONJ: tl.constexpr,
    COMPLEX: tl.constexpr,
    CARRY: tl.constexpr,
    OFFSET: tl.constexpr,
    BLOCK_TIME: tl.constexpr,
    BLOCK_STATE: tl.constexpr,
    ONLY_MARKED: tl.constexpr,
):
    """All tiles of one sequence, on channels of its own: see the module. `ROWS` is not read."""
    if ONLY_MARKED:
        is_right = tl.load(marks_ptr + tl.program_id(0)) != 0
        if is_right:
            return
    SKIP_FIRST: tl.constexpr = COSTATE or not HAS_START
    WIDTH: tl.constexpr = 2 if COMPLEX else 1
    blocks = tl.cdiv(STATE, BLOCK_STATE)
    whole = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK_STATE
    lane = tl.arange(0, BLOCK_STATE).to(OFFSET)
    inside = whole + lane < STATE
    row = (tl.program_id(0) // blocks // SEGMENTS).to(tl.int64)
    segment = ((tl.program_id(0) // blocks) % SEGMENTS).to(tl.int64)
    low, high = bounds_of(bounds_ptr, segment, TIME, PACKED)
    length = (high - low).to(tl.int32)
    a_ptr, a_step = enter(a_ptr, a_row, a_time, a_lane, row, whole, low, high, REVERSE)
    b_ptr, b_step = enter(b_ptr, b_row, b_time, b_lane, row, whole, low, high, REVERSE)
    states_ptr, states_step = enter(states_ptr, states_row, states_time, states_lane, row, whole, low, high, REVERSE)
    map_grad_ptr, out_step = enter(map_grad_ptr, out_row, out_time, WIDTH, row, whole, low, high, REVERSE)
    out_ptr, out_step = enter(out_ptr, out_row, out_time, WIDTH, row, whole, low, high, REVERSE)
    if COSTATE:
        # The costate is carried by the map of the step that was walked before.
        a_ptr -= a_step
    start_re = tl.zeros((BLOCK_STATE,), CARRY)
    start_im = start_re
    if HAS_START:
        start_re, start_im = read(start_ptr, row * start_row + segment * start_segment + (whole + lane) * start_lane, inside, 0.0, COMPLEX, CARRY)
    h_re = start_re
    h_im = start_im
    if COSTATE:
        h_re = tl.zeros((BLOCK_STATE,), CARRY)
        h_im = h_re
    near = tl.arange(0, BLOCK_TIME).to(OFFSET)[:, None]
    lane = lane[None, :]
    sources = (a_ptr, a_step, a_lane, b_ptr, b_step, b_lane, states_ptr, states_step, states_lane, start_re, start_im)
    tile = (near, lane, inside, length)
    zero = _fetch(sources, 0, tile, SKIP_FIRST, MAP_GRAD, HAS_START, CONJ, COMPLEX, CARRY, OFFSET)
    one = _fetch(sources, BLOCK_TIME, tile, SKIP_FIRST, MAP_GRAD, HAS_START, CONJ, COMPLEX, CARRY, OFFSET)
    two = _fetch(sources, 2 * BLOCK_TIME, tile, SKIP_FIRST, MAP_GRAD, HAS_START, CONJ, COMPLEX, CARRY, OFFSET)
    three = _fetch(sources, 3 * BLOCK_TIME, tile, SKIP_FIRST, MAP_GRAD, HAS_START, CONJ, COMPLEX, CARRY, OFFSET)
    # Each of four tiles has registers of its own: to move what is on its way would be to wait for it.
    for begin in range(0, length, 4 * BLOCK_TIME):
        h_re, h_im = _walk(zero, h_re, h_im, out_ptr, out_step, map_grad_ptr, begin, tile, MAP_GRAD, COMPLEX, OFFSET, BLOCK_TIME)
        zero = _fetch(sources, begin + 4 * BLOCK_TIME, tile, SKIP_FIRST, MAP_GRAD, HAS_START, CONJ, COMPLEX, CARRY, OFFSET)
        h_re, h_im = _walk(one, h_re, h_im, out_ptr, out_step, map_grad_ptr, begin + BLOCK_TIME, tile, MAP_GRAD, COMPLEX, OFFSET, BLOCK_TIME)
        one = _fetch(sources, begin + 5 * BLOCK_TIME, tile, SKIP_FIRST, MAP_GRAD, HAS_START, CONJ, COMPLEX, CARRY, OFFSET)
        h_re, h_im = _walk(two, h_re, h_im, out_ptr, out_step, map_grad_ptr, begin + 2 * BLOCK_TIME, tile, MAP_GRAD, COMPLEX, OFFSET, BLOCK_TIME)
        two = _fetch(sources, begin + 6 * BLOCK_TIME, tile, SKIP_FIRST, MAP_GRAD, HAS_START, CONJ, COMPLEX, CARRY, OFFSET)
        h_re, h_im = _walk(three, h_re, h_im, out_ptr, out_step, map_grad_ptr, begin + 3 * BLOCK_TIME, tile, MAP_GRAD, COMPLEX, OFFSET, BLOCK_TIME)
        three = _fetch(sources, begin + 7 * BLOCK_TIME, tile, SKIP_FIRST, MAP_GRAD, HAS_START, CONJ, COMPLEX, CARRY, OFFSET)
