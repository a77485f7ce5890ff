"""The diagonal scan in one pass over memory, for few lanes and long time: a program owns one tile, and learns of its past from the others.

A program loads its tile, scans it from zero and publishes the product of its maps and its end. What a tile starts from follows from the
published numbers of all tiles before it, gathered in two levels: those of its own group of GROUP tiles, and those of whole groups before it,
which the last tile of each group publishes. The order of all operations is fixed, so equal inputs give equal bits.

A published word is its own flag: memory is filled with a bit pattern that no result has, and a reader waits until it is gone. Programs take their
tile from a counter, so that they wait only for programs that run already.

Where a tile, or the fold of those before it, is doubtful, its flag is set; `triton_mend` walks such sequences step by step from there on.

Layout: as in `triton_walk`. `words` holds published numbers `(level, part, tile, row, lane)`, then the counter. Limits: below 2**31 steps.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pararnn.scans.kernels.triton_steps import doubtful, last_of, maps_and_terms, multiply_add, not_finite, read, scan_tile, write_states


@triton.jit
def _publish(words_ptr, offset, part_stride, p_re, p_im, x_re, x_im, mask, WORD: tl.constexpr, NAN: tl.constexpr, COMPLEX: tl.constexpr):
    """Store a product and an end, as bits that are never the ones of empty memory."""
    tl.atomic_xchg(words_ptr + offset, _bits(p_re, WORD, NAN), mask=mask, sem="relaxed")
    tl.atomic_xchg(words_ptr + part_stride + offset, _bits(x_re, WORD, NAN), mask=mask, sem="relaxed")
    if COMPLEX:
        tl.atomic_xchg(words_ptr + 2 * part_stride + offset, _bits(p_im, WORD, NAN), mask=mask, sem="relaxed")
        tl.atomic_xchg(words_ptr + 3 * part_stride + offset, _bits(x_im, WORD, NAN), mask=mask, sem="relaxed")


@triton.jit
def _bits(value, WORD: tl.constexpr, NAN: tl.constexpr):
    return tl.where(value == value, value.to(WORD, bitcast=True), NAN)


@triton.jit
def _await(ptr, offset, mask, other, CARRY: tl.constexpr):
    """The published numbers at `offset`, `other` where `mask` is false; waits until they are there."""
    word = tl.load(ptr + offset, mask=mask, other=0, volatile=True)
    while tl.max(tl.max((word == -1).to(tl.int32), 1), 0) > 0:
        word = tl.load(ptr + offset, mask=mask, other=0, volatile=True)
    return tl.where(mask, word.to(CARRY, bitcast=True), other)


@triton.jit
def _fold(
    words_ptr,
    offset,
    part_stride,
    mask,
    COMPLEX: tl.constexpr,
    CARRY: tl.constexpr,
    TINY: tl.constexpr,
    GROWTH: tl.constexpr,
    HEIGHT: tl.constexpr,
):
    """Product and end of published tiles, one after the other along the first axis; and whether they are doubtful."""
    a_re = _await(words_ptr, offset, mask, 1.0, CARRY)
    b_re = _await(words_ptr + part_stride, offset, mask, 0.0, CARRY)
    a_im = a_re
    b_im = b_re
    if COMPLEX:
        a_im = _await(words_ptr + 2 * part_stride, offset, mask, 0.0, CARRY)
        b_im = _await(words_ptr + 3 * part_stride, offset, mask, 0.0, CARRY)
    p_re, p_im, x_re, x_im = scan_tile(a_re, a_im, b_re, b_im, COMPLEX)
    doubt = doubtful(a_re, a_im, p_re, p_im, x_re, x_im, TINY, GROWTH, COMPLEX)
    p_re = last_of(p_re, HEIGHT)
    x_re = last_of(x_re, HEIGHT)
    if COMPLEX:
        p_im = last_of(p_im, HEIGHT)
        x_im = last_of(x_im, HEIGHT)
    else:
        p_im = p_re
        x_im = x_re
    return p_re, p_im, x_re, x_im, doubt


@triton.jit
def look_back(
    words_ptr,
    part_stride,
    place,
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
    COMPLEX: tl.constexpr,
    CARRY: tl.constexpr,
    WORD: tl.constexpr,
    NAN: tl.constexpr,
    TINY: tl.constexpr,
    GROWTH: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Publish the product and the end of a tile; the state it starts from where its sequence starts from `h`, and whether that is doubtful."""
    lanes = part_stride // TILES
    groups_ptr = words_ptr + (4 if COMPLEX else 2) * part_stride
    _publish(words_ptr, place + tile * lanes, part_stride, end_p_re, end_p_im, end_x_re, end_x_im, inside, WORD, NAN, COMPLEX)

    group = (tile - base) // GROUP
    within = (tile - base) % GROUP
    earlier = tl.arange(0, GROUP)[:, None]
    g_p_re, g_p_im, g_x_re, g_x_im, doubt = _fold(
        words_ptr,
        place[None, :] + (base + group * GROUP + earlier) * lanes,
        part_stride,
        (earlier < within) & inside[None, :],
        COMPLEX,
        CARRY,
        TINY,
        GROWTH,
        GROUP,
    )
    u_p_re, u_p_im = multiply_add(end_p_re, end_p_im, g_p_re, g_p_im, tl.zeros_like(g_p_re), tl.zeros_like(g_p_re), COMPLEX)
    u_x_re, u_x_im = multiply_add(end_p_re, end_p_im, g_x_re, g_x_im, end_x_re, end_x_im, COMPLEX)
    # The slot of a group is that of its last tile.
    _publish(
        groups_ptr,
        place + tile * lanes,
        part_stride,
        u_p_re,
        u_p_im,
        u_x_re,
        u_x_im,
        inside & (place * 0 + within == GROUP - 1),
        WORD,
        NAN,
        COMPLEX,
    )
    for passed in range(0, group, GROUP):
        before = passed + earlier
        q_p_re, q_p_im, q_x_re, q_x_im, more = _fold(
            groups_ptr,
            place[None, :] + (base + before * GROUP + (GROUP - 1)) * lanes,
            part_stride,
            (before < group) & inside[None, :],
            COMPLEX,
            CARRY,
            TINY,
            GROWTH,
            GROUP,
        )
        doubt = tl.maximum(doubt, more)
        h_re, h_im = multiply_add(q_p_re, q_p_im, h_re, h_im, q_x_re, q_x_im, COMPLEX)
    h_re, h_im = multiply_add(g_p_re, g_p_im, h_re, h_im, g_x_re, g_x_im, COMPLEX)
    return h_re, h_im, doubt


@triton.jit
def lookback_kernel(
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
):
    """One tile of one sequence, on channels of its own: see the module."""
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
    begin = ((tile - base) * BLOCK_TIME).to(tl.int32)
    near = tl.arange(0, BLOCK_TIME).to(OFFSET)[:, None]
    mask = (begin + near < length) & inside[None, :]
    a_re, a_im, b_re, b_im = maps_and_terms(
        a_ptr, a_step, a_lane, b_ptr, b_step, b_lane, begin, near, lane[None, :], mask, SKIP_FIRST, CONJ, COMPLEX, CARRY
    )
    p_re, p_im, x_re, x_im = scan_tile(a_re, a_im, b_re, b_im, COMPLEX)
    doubt = doubtful(a_re, a_im, p_re, p_im, x_re, x_im, TINY, GROWTH, COMPLEX)

    end_p_re = last_of(p_re, BLOCK_TIME)
    end_x_re = last_of(x_re, BLOCK_TIME)
    end_p_im = end_p_re
    end_x_im = end_x_re
    if COMPLEX:
        end_p_im = last_of(p_im, BLOCK_TIME)
        end_x_im = last_of(x_im, BLOCK_TIME)
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
    if COMPLEX:
        doubt = tl.maximum(doubt, not_finite(x_im))
    tl.store(flags_ptr + (row * blocks + block) * TILES + tile, doubt)
