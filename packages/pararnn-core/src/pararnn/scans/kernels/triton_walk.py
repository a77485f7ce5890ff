"""The diagonal scan in one pass over memory, for many lanes: a program owns channels of one sequence and goes through its time tile by tile.

Layout: maps and terms are `(rows, time, state)` with any strides, the result is contiguous; packed sequences lie along time between `bounds`. A
program carries one number a channel from tile to tile. At the first tile that is doubtful it remembers where it was, and after its last tile walks
from there again, step by step. Limits: below 2**31 steps. Oracle: `pararnn.scans.reference`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pararnn.scans.kernels.triton_steps import doubtful, last_of, maps_and_terms, multiply_add, read, scan_tile, walk_on, write_states


@triton.jit
def walk_kernel(
    a_ptr,
    a_row,
    a_time,
    a_lane,
    b_ptr,
    b_row,
    b_time,
    b_lane,
    start_ptr,
    start_row,
    start_segment,
    start_lane,
    states_ptr,
    states_row,
    states_time,
    states_lane,
    out_ptr,
    out_row,
    out_time,
    map_grad_ptr,
    bounds_ptr,
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
    TINY: tl.constexpr,
    GROWTH: tl.constexpr,
    BLOCK_TIME: tl.constexpr,
    BLOCK_STATE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """All tiles of one sequence, on channels of its own: see the module."""
    SKIP_FIRST: tl.constexpr = COSTATE or not HAS_START
    blocks = tl.cdiv(STATE, BLOCK_STATE)
    whole = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK_STATE
    lane = tl.arange(0, BLOCK_STATE).to(OFFSET)
    inside = whole + lane < STATE
    row = (tl.program_id(0) // blocks // SEGMENTS).to(tl.int64)
    segment = ((tl.program_id(0) // blocks) % SEGMENTS).to(tl.int64)
    low = row * 0
    high = low + TIME
    if PACKED:
        low = tl.load(bounds_ptr + segment)
        high = tl.load(bounds_ptr + segment + 1)
    length = (high - low).to(tl.int32)
    first = low
    a_step = a_time
    b_step = b_time
    states_step = states_time
    out_step = out_time
    if REVERSE:
        first = high - 1
        a_step = -a_time
        b_step = -b_time
        states_step = -states_time
        out_step = -out_time
    a_ptr += row * a_row + first * a_time + whole * a_lane
    b_ptr += row * b_row + first * b_time + whole * b_lane
    states_ptr += row * states_row + first * states_time + whole * states_lane
    out_ptr += row * out_row + first * out_time + whole * (2 if COMPLEX else 1)
    map_grad_ptr += row * out_row + first * out_time + whole * (2 if COMPLEX else 1)
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
    doubted = length
    kept_re = h_re
    kept_im = h_im
    for begin in tl.range(0, length, BLOCK_TIME, num_stages=STAGES):
        mask = (begin + near < length) & inside[None, :]
        a_re, a_im, b_re, b_im = maps_and_terms(
            a_ptr, a_step, a_lane, b_ptr, b_step, b_lane, begin, near, lane[None, :], mask, SKIP_FIRST, CONJ, COMPLEX, CARRY
        )
        p_re, p_im, x_re, x_im = scan_tile(a_re, a_im, b_re, b_im, COMPLEX)
        x_re, x_im = multiply_add(p_re, p_im, h_re[None, :], h_im[None, :], x_re, x_im, COMPLEX)
        write_states(
            out_ptr,
            out_step,
            map_grad_ptr,
            states_ptr,
            states_step,
            states_lane,
            start_re[None, :],
            start_im[None, :],
            begin,
            near,
            lane[None, :],
            mask,
            length,
            x_re,
            x_im,
            MAP_GRAD,
            HAS_START,
            COMPLEX,
            CARRY,
        )
        now = (doubtful(a_re, a_im, p_re, p_im, x_re, x_im, TINY, GROWTH, COMPLEX) > 0) & (doubted == length)
        doubted = tl.where(now, begin, doubted)
        kept_re = tl.where(now, h_re, kept_re)
        h_re = last_of(x_re, BLOCK_TIME)
        if COMPLEX:
            kept_im = tl.where(now, h_im, kept_im)
            h_im = last_of(x_im, BLOCK_TIME)
    # What the tiles wrote must not come after what replaces it.
    tl.debug_barrier()
    walk_on(
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
        doubted,
        length,
        lane,
        inside,
        kept_re,
        kept_im,
        SKIP_FIRST,
        MAP_GRAD,
        HAS_START,
        CONJ,
        COMPLEX,
        CARRY,
    )
