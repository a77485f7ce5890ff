"""What follows `triton_lookback` and `triton_chunks`: sequences with a doubtful stretch are walked step by step from there on.

Layout and limits: as there; `flags` has one number for each row, block of channels and stretch of BLOCK_TIME steps.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pararnn.scans.kernels.triton_steps import read, walk_on


@triton.jit
def mend_kernel(
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
    flags_ptr,
    SEGMENTS,
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
    BLOCK_TIME: tl.constexpr,
    BLOCK_STATE: tl.constexpr,
    BLOCK_FLAGS: tl.constexpr,
):
    """Walk on from the first tile whose flag is set; where there is none, which is what happens, only flags are read."""
    SKIP_FIRST: tl.constexpr = COSTATE or not HAS_START
    blocks = tl.cdiv(STATE, BLOCK_STATE)
    block = tl.program_id(0) % blocks
    row = (tl.program_id(0) // blocks // SEGMENTS).to(tl.int64)
    segment = ((tl.program_id(0) // blocks) % SEGMENTS).to(tl.int64)
    low = row * 0
    high = low + TIME
    base = low
    if PACKED:
        low = tl.load(bounds_ptr + segment)
        high = tl.load(bounds_ptr + segment + 1)
        base = tl.load(tiles_ptr + segment)
    length = (high - low).to(tl.int32)
    tiles = tl.cdiv(length, BLOCK_TIME)
    flags_ptr += (row * blocks + block) * TILES + base
    doubted = tiles
    for begin in range(0, tiles, BLOCK_FLAGS):
        tile = begin + tl.arange(0, BLOCK_FLAGS)
        flag = tl.load(flags_ptr + tile, mask=tile < tiles, other=0)
        doubted = tl.minimum(doubted, tl.min(tl.where(flag > 0, tile, tiles), 0))
    if doubted < tiles:
        whole = block.to(tl.int64) * BLOCK_STATE
        lane = tl.arange(0, BLOCK_STATE).to(OFFSET)
        inside = whole + lane < STATE
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
            a_ptr -= a_step
        start_re = tl.zeros((BLOCK_STATE,), CARRY)
        start_im = start_re
        if HAS_START:
            start_re, start_im = read(start_ptr, row * start_row + segment * start_segment + (whole + lane) * start_lane, inside, 0.0, COMPLEX, CARRY)
        step = doubted * BLOCK_TIME
        # The tile before the first doubtful one ended right.
        far = (step - 1).to(tl.int64) * out_step
        h_re, h_im = read(out_ptr + far, lane * (2 if COMPLEX else 1), whole + lane < tl.where(step > 0, STATE, 0), 0.0, COMPLEX, CARRY)
        if HAS_START and not COSTATE:
            h_re = tl.where(step > 0, h_re, start_re)
            h_im = tl.where(step > 0, h_im, start_im)
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
            step,
            length,
            lane,
            inside,
            h_re,
            h_im,
            SKIP_FIRST,
            MAP_GRAD,
            HAS_START,
            CONJ,
            COMPLEX,
            CARRY,
        )
