"""The diagonal scan in one pass over memory, for few lanes and long time: a warp owns one tile, and learns of its past from the others.

It serves complex numbers; real ones have `triton_chain`.

A program loads its tile, scans it from zero and publishes the product of its maps and its end. What it starts from follows from what earlier tiles
publish, gathered in three levels: the tiles of its own group of GROUP before it; the groups of its own era of GROUP groups before it, which the
last tile of each group publishes; and the state at the end of the era before, which its last tile publishes. Then the program walks its tile from
there, as the definition does, from registers. Nobody waits for more than 2 GROUP tiles and one state, and eras follow each other only by
that state. The order of all operations is fixed, so equal inputs give equal bits.

A published word is its own flag: memory is filled with a bit pattern that no result has, and a reader waits until it is gone. A program waits only
for programs with smaller numbers, and those are started first (as CUB's scan assumes too).

Products of maps may overflow or underflow where the states do not. Then a tile does not end where its products said, which is where the next
one starts: the program compares both, and marks its sequence, which the walk then does again.

Layout: as in `triton_walk`; `words` holds what is published, see below. Limits: below 2**31 steps.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pararnn.scans.kernels.triton_steps import (
    UNALIGNED,
    bounds_of,
    enter,
    follow,
    last_of,
    maps_and_terms,
    multiply_add,
    read,
    scan_tile,
    spread,
    states_further,
    write_states,
)


@triton.jit
def _publish(ptr, offset, part, re, im, mask, WORD: tl.constexpr, NAN: tl.constexpr, COMPLEX: tl.constexpr):
    """Store numbers as bits that are never the ones of empty memory."""
    tl.atomic_xchg(ptr + offset, tl.where(re == re, re.to(WORD, bitcast=True), NAN), mask=mask, sem="relaxed")
    if COMPLEX:
        tl.atomic_xchg(ptr + part + offset, tl.where(im == im, im.to(WORD, bitcast=True), NAN), mask=mask, sem="relaxed")


@triton.jit
def _await(ptr, offset, mask, CARRY: tl.constexpr):
    """The published numbers at `offset`, zero where `mask` is false; waits until all are there."""
    word = tl.load(ptr + offset, mask=mask, other=0, volatile=True)
    while tl.max(tl.ravel((word == -1).to(tl.int32)), 0) > 0:
        word = tl.load(ptr + offset, mask=mask, other=0, volatile=True)
    return word.to(CARRY, bitcast=True)


@triton.jit
def _await_both(ptr, offset, part, mask, CARRY: tl.constexpr):
    """The published numbers at `offset` and `part` behind it, asked for at once, and again where they are missing.

    Both must be used: Triton 3.6 fails where one is not.
    """
    one = tl.load(ptr + offset, mask=mask, other=0, volatile=True)
    two = tl.load(ptr + part + offset, mask=mask, other=0, volatile=True)
    missing = (one == -1) | (two == -1)
    while tl.max(tl.ravel(missing.to(tl.int32)), 0) > 0:
        one = tl.where(missing, tl.load(ptr + offset, mask=missing, other=0, volatile=True), one)
        two = tl.where(missing, tl.load(ptr + part + offset, mask=missing, other=0, volatile=True), two)
        missing = (one == -1) | (two == -1)
    return one.to(CARRY, bitcast=True), two.to(CARRY, bitcast=True)


@triton.jit
def _gather(ptr, offset, part, mask, near, COMPLEX: tl.constexpr, CARRY: tl.constexpr, HEIGHT: tl.constexpr):
    """Product and end of what is published along the first axis, one after the other."""
    a_re, b_re = _await_both(ptr, offset, (2 if COMPLEX else 1) * part, mask, CARRY)
    a_re = tl.where(mask, a_re, 1.0)
    a_im = a_re
    b_im = b_re
    if COMPLEX:
        a_im, b_im = _await_both(ptr + part, offset, 2 * part, mask, CARRY)
    p_re, p_im, x_re, x_im = scan_tile(a_re, a_im, b_re, b_im, COMPLEX)
    p_re, p_im = last_of(p_re, p_im, near, HEIGHT, COMPLEX)
    x_re, x_im = last_of(x_re, x_im, near, HEIGHT, COMPLEX)
    return p_re, p_im, x_re, x_im


@triton.jit
def _compose(p_re, p_im, x_re, x_im, q_re, q_im, y_re, y_im, COMPLEX: tl.constexpr):
    """Product and end of `(q, y)` followed by `(p, x)`."""
    zero = tl.zeros_like(p_re)
    r_re, r_im = multiply_add(p_re, p_im, q_re, q_im, zero, zero, COMPLEX)
    z_re, z_im = multiply_add(p_re, p_im, y_re, y_im, x_re, x_im, COMPLEX)
    return r_re, r_im, z_re, z_im


@triton.jit
def _apart(e_re, e_im, f_re, f_im, allowed, COMPLEX: tl.constexpr):
    """Where two numbers differ by more than `allowed`, or are not finite."""
    apart = (tl.abs(e_re - f_re) <= allowed) == 0
    if COMPLEX:
        apart = apart | ((tl.abs(e_im - f_im) <= allowed) == 0)
    return apart


@triton.jit(do_not_specialize_on_alignment=UNALIGNED)
def tile_kernel(
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
    tiles_ptr,
    owners_ptr,
    words_ptr,
    ROWS,
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
    WORD: tl.constexpr,
    NAN: tl.constexpr,
    ALLOWED: tl.constexpr,
    BLOCK_TIME: tl.constexpr,
    BLOCK_STATE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One tile of one sequence, on channels of its own: see the module."""
    SKIP_FIRST: tl.constexpr = COSTATE or not HAS_START
    WIDTH: tl.constexpr = 2 if COMPLEX else 1
    blocks = tl.cdiv(STATE, BLOCK_STATE)
    # Time is the slowest axis of the order in which programs start.
    block = tl.program_id(0) % blocks
    row = (tl.program_id(0) // blocks % ROWS).to(tl.int64)
    tile = (tl.program_id(0) // blocks // ROWS).to(tl.int64)
    whole = block.to(tl.int64) * BLOCK_STATE
    lane = tl.arange(0, BLOCK_STATE).to(OFFSET)
    inside = whole + lane < STATE
    segment = row * 0
    base = segment
    if PACKED:
        segment = tl.load(owners_ptr + tile)
        base = tl.load(tiles_ptr + segment)
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
    begin = ((tile - base) * BLOCK_TIME).to(tl.int32)
    near = tl.arange(0, BLOCK_TIME).to(OFFSET)[:, None]
    mask = (begin + near < length) & inside[None, :]
    a_re, a_im, b_re, b_im = maps_and_terms(
        a_ptr, a_step, a_lane, b_ptr, b_step, b_lane, begin, near, lane[None, :], mask, SKIP_FIRST, CONJ, COMPLEX, CARRY, OFFSET
    )
    p_re, p_im, x_re, x_im = scan_tile(a_re, a_im, b_re, b_im, COMPLEX)
    p_re, p_im = last_of(p_re, p_im, near, BLOCK_TIME, COMPLEX)
    x_re, x_im = last_of(x_re, x_im, near, BLOCK_TIME, COMPLEX)

    # What is published on these channels lies together: of tiles, then of groups, then of eras; for each its parts, and of those the lanes. A group
    # has the place of its first tile over GROUP, so that sequences share none.
    group = (tile - base) // GROUP
    within = (tile - base) % GROUP
    era = group // GROUP
    of_era = group % GROUP
    # With as many steps as are allowed there are more words than 32 bits count.
    groups = tl.cast(TILES, tl.int64) // GROUP + 1
    eras = TILES // (GROUP * GROUP) + 1
    PART: tl.constexpr = BLOCK_STATE
    SLOT: tl.constexpr = 2 * WIDTH * BLOCK_STATE
    words_ptr += (row * blocks + block) * ((TILES + groups) * SLOT + eras * WIDTH * PART)
    tiles_at = words_ptr + tile * SLOT
    groups_at = words_ptr + (TILES + base // GROUP + group) * SLOT
    eras_at = words_ptr + (TILES + groups) * SLOT + (base // (GROUP * GROUP) + era) * WIDTH * PART
    at = tl.arange(0, BLOCK_STATE)
    last_of_group = inside & (at * 0 + within == GROUP - 1)
    earlier = tl.arange(0, GROUP)[:, None]
    beside = spread(earlier, SLOT, at[None, :], 1)
    _publish(tiles_at, at, PART, p_re, p_im, inside, WORD, NAN, COMPLEX)
    _publish(tiles_at + WIDTH * PART, at, PART, x_re, x_im, inside, WORD, NAN, COMPLEX)
    q_re, q_im, y_re, y_im = _gather(tiles_at - within * SLOT, beside, PART, (earlier < within) & inside[None, :], earlier, COMPLEX, CARRY, GROUP)
    p_re, p_im, x_re, x_im = _compose(p_re, p_im, x_re, x_im, q_re, q_im, y_re, y_im, COMPLEX)
    _publish(groups_at, at, PART, p_re, p_im, last_of_group, WORD, NAN, COMPLEX)
    _publish(groups_at + WIDTH * PART, at, PART, x_re, x_im, last_of_group, WORD, NAN, COMPLEX)
    r_re, r_im, z_re, z_im = _gather(groups_at - of_era * SLOT, beside, PART, (earlier < of_era) & inside[None, :], earlier, COMPLEX, CARRY, GROUP)
    start_re = tl.zeros((BLOCK_STATE,), CARRY)
    start_im = start_re
    if HAS_START:
        start_re, start_im = read(start_ptr, row * start_row + segment * start_segment + (whole + lane) * start_lane, inside, 0.0, COMPLEX, CARRY)
    h_re = start_re
    h_im = start_im
    if COSTATE:
        h_re = tl.zeros((BLOCK_STATE,), CARRY)
        h_im = h_re
    passed = inside & (at * 0 + era > 0)
    h_re = tl.where(passed, _await(eras_at - WIDTH * PART, at, passed, CARRY), h_re)
    if COMPLEX:
        h_im = tl.where(passed, _await(eras_at - PART, at, passed, CARRY), h_im)

    # From the end of the last era to the start of this group, and on to the start of this tile.
    g_re, g_im = multiply_add(r_re, r_im, h_re, h_im, z_re, z_im, COMPLEX)
    s_re, s_im = multiply_add(q_re, q_im, g_re, g_im, y_re, y_im, COMPLEX)
    f_re, f_im = multiply_add(p_re, p_im, g_re, g_im, x_re, x_im, COMPLEX)
    p_re, p_im, x_re, x_im = _compose(p_re, p_im, x_re, x_im, r_re, r_im, z_re, z_im, COMPLEX)
    d_re, d_im = multiply_add(p_re, p_im, h_re, h_im, x_re, x_im, COMPLEX)
    h_re, h_im = follow(a_re, a_im, b_re, b_im, near, s_re, s_im, COMPLEX)
    e_re, e_im = last_of(h_re, h_im, near, BLOCK_TIME, COMPLEX)
    _publish(eras_at, at, PART, e_re, e_im, last_of_group & (at * 0 + of_era == GROUP - 1), WORD, NAN, COMPLEX)
    u_re = h_re
    u_im = h_im
    if MAP_GRAD:
        u_re, u_im = states_further(
            states_ptr,
            states_step,
            states_lane,
            start_re,
            start_im,
            begin,
            near,
            lane[None, :],
            mask,
            length,
            HAS_START,
            COMPLEX,
            CARRY,
            OFFSET,
        )
    write_states(out_ptr, out_step, map_grad_ptr, begin, near, lane[None, :], mask, h_re, h_im, u_re, u_im, MAP_GRAD, COMPLEX, OFFSET)
    size = tl.max(tl.abs(h_re), 0)
    if COMPLEX:
        size = tl.maximum(size, tl.max(tl.abs(h_im), 0))
    apart = _apart(e_re, e_im, f_re, f_im, ALLOWED * size, COMPLEX) & inside
    apart = apart | (_apart(e_re, e_im, d_re, d_im, ALLOWED * size, COMPLEX) & last_of_group)
    mark = (row * SEGMENTS + segment) * blocks + block
    tl.store(marks_ptr + mark, 0, mask=tl.max(apart.to(tl.int32), 0) > 0)
