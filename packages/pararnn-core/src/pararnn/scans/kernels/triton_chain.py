"""The diagonal scan of real numbers in one pass over memory, for few lanes: a program owns one tile, and learns of its past from the others.

A tile is `(groups, steps, lanes)`. A group is a warp: a lane is a thread, which has all steps of the group in registers and goes through them from
zero. Groups are composed through shared memory, and the program publishes the product of the maps of its tile, and its end. LINK tiles are a link
of the chain. A program gathers what the tiles of its link before it have published, and the state at the end of the link before; from both follows
what its own tile starts from. The last tile of a link publishes where the link ends, before it goes through its tile. So only states go from
link to link, one after the other, while tiles of many links are read at once. Then each thread goes through its group again, from registers. The
order of all operations is fixed, so equal inputs give equal bits.

A program waits (`triton_words`) only for programs with smaller numbers, and those are started first (as CUB's scan assumes too).

Products of maps may leave the range of numbers where the states do not. What products may have lost, because it was too small to be told
from zero, is bounded from link to link and within a tile, the `doubt`, as in `triton_stream`; products that are too large make it, or the
states, infinite. And a tile must end where products said, which is where the next one starts. Where that fails, the program marks its
sequence, which `triton_walk` then does again, one step after the other.

Layout: as in `triton_walk`; `words` holds what is published, see below. Limits: below 2**31 steps. Oracle: `pararnn.scans.reference`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pararnn.scans.kernels.triton_groups import compose, fetch, follow, store
from pararnn.scans.kernels.triton_steps import UNALIGNED, bounds_of, enter
from pararnn.scans.kernels.triton_words import await_both, await_one, publish


@triton.jit
def _add_both(p, x, other_p, other_x):
    return p + other_p, x + other_x


@triton.jit
def _of_tiles(p, x, gain, other_p, other_x, other_gain):
    return p + other_p, x + other_x, gain * other_gain


@triton.jit
def _add_three(one, two, three, other_one, other_two, other_three):
    return one + other_one, two + other_two, three + other_three


@triton.jit
def _in_group(last, growth, size, other_last, other_growth, other_size):
    return last + other_last, growth * other_growth, tl.maximum(size, other_size)


@triton.jit
def _in_tile(last, gain, inner, growth, size, other_last, other_gain, other_inner, other_growth, other_size):
    return last + other_last, gain * other_gain, tl.maximum(inner, other_inner), tl.maximum(growth, other_growth), tl.maximum(size, other_size)


@triton.jit(do_not_specialize=("ROWS", "SEGMENTS", "TILES"), do_not_specialize_on_alignment=UNALIGNED)
def chain_kernel(
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
    CARRY: tl.constexpr,
    OFFSET: tl.constexpr,
    SPIN: tl.constexpr,
    WORD: tl.constexpr,
    NAN: tl.constexpr,
    ALLOWED: tl.constexpr,
    TINY: tl.constexpr,
    NEAR: tl.constexpr,
    FAR: tl.constexpr,
    BLOCK_TIME: tl.constexpr,
    BLOCK_STATE: tl.constexpr,
    GROUPS: tl.constexpr,
    LINK: tl.constexpr,
):
    """One tile of one sequence, on channels of its own: see the module."""
    SKIP_FIRST: tl.constexpr = COSTATE or not HAS_START
    HEIGHT: tl.constexpr = BLOCK_TIME // GROUPS
    blocks = tl.cdiv(STATE, BLOCK_STATE)
    # Time is the slowest axis of the order in which programs start.
    block = tl.program_id(0) % blocks
    row = (tl.program_id(0) // blocks % ROWS).to(tl.int64)
    number = (tl.program_id(0) // blocks // ROWS).to(tl.int64)
    whole = block.to(tl.int64) * BLOCK_STATE
    segment = row * 0
    base = segment
    if PACKED:
        segment = tl.load(owners_ptr + number)
        base = tl.load(tiles_ptr + segment)
    low, high = bounds_of(bounds_ptr, segment, TIME, PACKED)
    length = (high - low).to(tl.int32)
    a_ptr, a_step = enter(a_ptr, a_row, a_time, a_lane, row, whole, low, high, REVERSE)
    b_ptr, b_step = enter(b_ptr, b_row, b_time, b_lane, row, whole, low, high, REVERSE)
    states_ptr, states_step = enter(states_ptr, states_row, states_time, states_lane, row, whole, low, high, REVERSE)
    map_grad_ptr, out_step = enter(map_grad_ptr, out_row, out_time, 1, row, whole, low, high, REVERSE)
    out_ptr, out_step = enter(out_ptr, out_row, out_time, 1, row, whole, low, high, REVERSE)
    if COSTATE:
        # The costate is carried by the map of the step that was walked before.
        a_ptr -= a_step
    lane = tl.arange(0, BLOCK_STATE)[None, None, :]
    inside = whole + lane < STATE
    start = tl.zeros((1, 1, BLOCK_STATE), CARRY)
    if HAS_START:
        start = tl.load(start_ptr + row * start_row + segment * start_segment + (whole + lane) * start_lane, mask=inside, other=0.0).to(CARRY)
    first = tl.zeros((1, 1, BLOCK_STATE), CARRY) if COSTATE else start
    sources = (a_ptr, a_step, a_lane, b_ptr, b_step, b_lane, states_ptr, states_step, states_lane, start)
    group = tl.arange(0, GROUPS)[:, None, None]
    height = tl.arange(0, HEIGHT)[None, :, None]
    tile = ((group * HEIGHT + height).to(OFFSET), lane.to(OFFSET), inside, length)
    ends = height == HEIGHT - 1
    at_last = group == GROUPS - 1
    begin = ((number - base) * BLOCK_TIME).to(tl.int32)
    a, b, s = fetch(sources, begin, tile, SKIP_FIRST, MAP_GRAD, HAS_START, CARRY, OFFSET, SPREAD=True)
    p, x = tl.associative_scan((a, b), 1, follow)
    p = tl.sum(tl.where(ends, p, 0.0), 1, keep_dims=True)
    x = tl.sum(tl.where(ends, x, 0.0), 1, keep_dims=True)
    of_group = tl.abs(p)
    p, x, q, y = tl.associative_scan((p, x, tl.full(p.shape, 1.0, CARRY), tl.zeros(p.shape, CARRY)), 0, compose)
    p, x = tl.reduce((tl.where(at_last, p, 0.0), tl.where(at_last, x, 0.0)), 0, _add_both, keep_dims=True)

    # What is published on these channels lies together: of tiles, each its product and its end, then of links, each the state, its doubt, and the
    # largest state so far. A link has the place of its first tile over LINK: only links of LINK tiles are read, so that sequences share none.
    link = (number - base) // LINK
    within = ((number - base) % LINK).to(tl.int32)
    # With as many steps as are allowed there are more words than 32 bits count.
    tiles = tl.cast(TILES, tl.int64)
    OF_TILE: tl.constexpr = 2 * BLOCK_STATE
    OF_LINK: tl.constexpr = 3 * BLOCK_STATE
    words_ptr += (row * blocks + block) * (tiles * OF_TILE + (tiles // LINK + 1) * OF_LINK)
    tile_at = words_ptr + number * OF_TILE
    link_at = words_ptr + tiles * OF_TILE + (base // LINK + link) * OF_LINK
    publish(tile_at + lane, p, inside, WORD, NAN)
    publish(tile_at + BLOCK_STATE + lane, x, inside, WORD, NAN)
    place = tl.arange(0, LINK)[:, None, None]
    before = (place < within) & inside
    r, z = await_both(tile_at - within * OF_TILE + (place * OF_TILE + lane), BLOCK_STATE, before, CARRY, SPIN)
    r = tl.where(before, r, 1.0)
    reach = tl.maximum(tl.abs(r), 1.0)
    r, z = tl.associative_scan((r, z), 0, follow)
    at_within = place == LINK - 1
    r, z, reach = tl.reduce((tl.where(at_within, r, 0.0), tl.where(at_within, z, 0.0), reach), 0, _of_tiles, keep_dims=True)
    known = await_one(link_at - OF_LINK + (place * BLOCK_STATE + lane), (place < 3) & inside & (lane * 0 + link > 0), CARRY, SPIN)
    parts = (tl.where(place == 0, known, 0.0), tl.where(place == 1, known, 0.0), tl.where(place == 2, known, 0.0))
    h, doubt, largest = tl.reduce(parts, 0, _add_three, keep_dims=True)
    h = tl.where(link > 0, h, first)
    largest = tl.where(link > 0, largest, tl.abs(first))
    end = (p * r) * h + (p * z + x)
    lost = TINY * largest
    is_last = inside & (lane * 0 + within == LINK - 1)
    publish(link_at + lane, end, is_last, WORD, NAN)
    publish(link_at + BLOCK_STATE + lane, tl.abs(p * r) * doubt + reach * tl.maximum(tl.abs(p), 1.0) * lost, is_last, WORD, NAN)
    publish(link_at + 2 * BLOCK_STATE + lane, tl.maximum(largest, tl.abs(end)), is_last, WORD, NAN)

    h = r * h + z
    b = tl.where(height == 0, a * (q * h + y) + b, b)
    _p, x = tl.associative_scan((a, b), 1, follow)
    store((out_ptr, map_grad_ptr, out_step), begin, tile, x, s, MAP_GRAD, OFFSET, SPREAD=True)
    # What products lost may have grown in the group where it was lost, if one became as small there; as the product of each group after it; and
    # within the group that started from it.
    last, growth, size = tl.reduce((tl.where(ends, x, 0.0), tl.maximum(tl.abs(a), 1.0), tl.abs(x)), 1, _in_group, keep_dims=True)
    inner = tl.where(NEAR * of_group > TINY * growth, 1.0, growth)
    of_groups = (tl.where(at_last, last, 0.0), tl.maximum(of_group, 1.0), inner, growth, size)
    last, gain, inner, growth, size = tl.reduce(of_groups, 0, _in_tile, keep_dims=True)
    largest = tl.maximum(tl.maximum(largest, tl.abs(h)), size)
    doubt = (doubt + lost) * reach * gain * inner * growth
    right = (tl.abs(last - end) <= ALLOWED * size) & (doubt <= tl.maximum(NEAR * size, FAR * largest)) & (size < float("inf"))
    mark = (row * SEGMENTS + segment) * blocks + block
    tl.store(marks_ptr + mark, 0, mask=tl.max(tl.ravel((inside & (right == 0)).to(tl.int32)), 0) > 0)
