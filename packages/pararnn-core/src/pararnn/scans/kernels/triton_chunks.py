"""The diagonal scan for few lanes and long time, with little kept while a program waits: a program owns a chunk of several tiles.

As `triton_lookback`, but a program goes through its chunk twice: first for the product of its maps and its end, which it publishes, then for the
states, from where the chunk starts. The second time it reads from the cache, if not too many programs work in between. It holds no tile while it
waits, so that more programs fit on a processor.

Layout, words, flags and limits: as in `triton_lookback`, with chunks for tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pararnn.scans.kernels.triton_lookback import look_back
from pararnn.scans.kernels.triton_steps import (
    last_of,
    maps_and_terms,
    multiply_add,
    not_finite,
    read,
    scan_tile,
    verdict,
    weigh,
    write_states,
)


@triton.jit
def chunk_kernel(
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
    tiles_ptr,
    owners_ptr,
    words_ptr,
    flags_ptr,
    ROWS,
    TIME,
    STATE,
    TILES,
    HAS_START: tl.constexpr,
    COSTATE: tl.constexpr,
    MAP_GRAD: tl.constexpr,
    REVERSE: tl.constexpr,
    PACKED: tl.constexpr,
    CONJ: tl.constexpr,
    COMPLEX: tl.constexpr,
    CARRY: tl.constexpr,
    OFFSET: tl.constexpr,
    WORD: tl.constexpr,
    NAN: tl.constexpr,
    TINY: tl.constexpr,
    GROWTH: tl.constexpr,
    BLOCK_TIME: tl.constexpr,
    BLOCK_STATE: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One chunk of one sequence, on channels of its own: see the module."""
    SKIP_FIRST: tl.constexpr = COSTATE or not HAS_START
    PARTS: tl.constexpr = 4 if COMPLEX else 2
    blocks = tl.cdiv(STATE, BLOCK_STATE)
    # Time is the slowest axis of the order in which programs start.
    part_stride = tl.cast(TILES, tl.int64) * ROWS * STATE
    ticket = (tl.atomic_add(words_ptr + 2 * PARTS * part_stride, 1, sem="relaxed") + 1).to(tl.int64)
    tile = ticket // (ROWS * blocks)
    row = ticket // blocks % ROWS
    block = ticket % blocks
    whole = block * BLOCK_STATE
    lane = tl.arange(0, BLOCK_STATE).to(OFFSET)
    inside = whole + lane < STATE
    segment = row * 0
    low = segment
    high = low + TIME
    base = segment
    if PACKED:
        segment = tl.load(owners_ptr + tile)
        low = tl.load(bounds_ptr + segment)
        high = tl.load(bounds_ptr + segment + 1)
        base = tl.load(tiles_ptr + segment)
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
    start = ((tile - base) * CHUNK).to(tl.int32)
    end = tl.minimum(start + CHUNK, length)
    near = tl.arange(0, BLOCK_TIME).to(OFFSET)[:, None]
    end_p_re = tl.full((BLOCK_STATE,), 1.0, CARRY)
    end_p_im = tl.zeros((BLOCK_STATE,), CARRY)
    end_x_re = end_p_im
    end_x_im = end_p_im
    smallest = end_p_re
    growth = end_p_im
    for begin in tl.range(start, end, BLOCK_TIME, num_stages=STAGES):
        mask = (begin + near < end) & inside[None, :]
        a_re, a_im, b_re, b_im = maps_and_terms(
            a_ptr, a_step, a_lane, b_ptr, b_step, b_lane, begin, near, lane[None, :], mask, SKIP_FIRST, CONJ, COMPLEX, CARRY
        )
        p_re, p_im, x_re, x_im = scan_tile(a_re, a_im, b_re, b_im, COMPLEX)
        lowest, bits = weigh(a_re, a_im, p_re, p_im, x_re, x_im, COMPLEX)
        size = tl.abs(end_p_re)
        last_p_re = last_of(p_re, BLOCK_TIME)
        last_x_re = last_of(x_re, BLOCK_TIME)
        last_p_im = last_p_re
        last_x_im = last_x_re
        if COMPLEX:
            size = tl.maximum(size, tl.abs(end_p_im))
            last_p_im = last_of(p_im, BLOCK_TIME)
            last_x_im = last_of(x_im, BLOCK_TIME)
        smallest = tl.minimum(smallest, lowest * size)
        growth += bits
        end_x_re, end_x_im = multiply_add(last_p_re, last_p_im, end_x_re, end_x_im, last_x_re, last_x_im, COMPLEX)
        zero = tl.zeros_like(size)
        end_p_re, end_p_im = multiply_add(last_p_re, last_p_im, end_p_re, end_p_im, zero, zero, COMPLEX)
    doubt = verdict(smallest, growth, TINY, GROWTH)

    start_re = tl.zeros((BLOCK_STATE,), CARRY)
    start_im = start_re
    if HAS_START:
        start_re, start_im = read(start_ptr, row * start_row + segment * start_segment + (whole + lane) * start_lane, inside, 0.0, COMPLEX, CARRY)
    h_re = start_re
    h_im = start_im
    if COSTATE:
        h_re = tl.zeros((BLOCK_STATE,), CARRY)
        h_im = h_re
    h_re, h_im, more = look_back(
        words_ptr,
        part_stride,
        row * STATE + whole + lane,
        inside,
        tile,
        base,
        TILES,
        end_p_re,
        end_p_im,
        end_x_re,
        end_x_im,
        h_re,
        h_im,
        COMPLEX,
        CARRY,
        WORD,
        NAN,
        TINY,
        GROWTH,
        GROUP,
    )
    doubt = tl.maximum(doubt, more)
    # What was read before still lies in the cache.
    for begin in tl.range(start, end, BLOCK_TIME, num_stages=STAGES):
        mask = (begin + near < end) & inside[None, :]
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
        doubt = tl.maximum(doubt, not_finite(x_re))
        h_re = last_of(x_re, BLOCK_TIME)
        if COMPLEX:
            doubt = tl.maximum(doubt, not_finite(x_im))
            h_im = last_of(x_im, BLOCK_TIME)
    tl.store(flags_ptr + (row * blocks + block) * TILES + tile, doubt)
