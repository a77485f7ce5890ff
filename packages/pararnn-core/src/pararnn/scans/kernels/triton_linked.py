"""The diagonal scan of real numbers whose steps lie next to each other in memory, for few lines: a program owns one tile of one line.

Tiles are scanned as in `triton_lines`. LINK tiles are a link of a chain, as in `triton_chain`: a program publishes the product of the maps of its
tile, its end from zero, and what products may have lost; it gathers those of the tiles of its link before it, and the state at the end of the link
before. The last tile of a link publishes where the link ends, with the doubt of that and the largest state so far. So only states go from link to
link, one after the other. A program waits (`triton_words`) only for programs with smaller numbers, and those are started first (as CUB's scan
assumes too). The order of all operations is fixed, so equal inputs give equal bits.

Where products said too little, the program marks its line, which `line_kernel` then walks. Limits: below 2**31 steps. Oracle:
`pararnn.scans.reference`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pararnn.scans.kernels.triton_lines import _combine, enter_line, fetch_line, scan_line, store_line, summed_up
from pararnn.scans.kernels.triton_words import await_one, publish


@triton.jit
def _add_three(one, two, three, other_one, other_two, other_three):
    return one + other_one, two + other_two, three + other_three


@triton.jit(do_not_specialize=("LINES", "STATE", "TILES"))
def linked_kernel(
    a_ptr,
    a_row,
    a_lane,
    b_ptr,
    b_row,
    b_lane,
    start_ptr,
    start_row,
    start_lane,
    states_ptr,
    states_row,
    states_lane,
    out_ptr,
    out_row,
    out_lane,
    map_grad_ptr,
    marks_ptr,
    words_ptr,
    LINES,
    TILES,
    STATE,
    TIME,
    A_TIME: tl.constexpr,
    B_TIME: tl.constexpr,
    STATES_TIME: tl.constexpr,
    HAS_START: tl.constexpr,
    COSTATE: tl.constexpr,
    MAP_GRAD: tl.constexpr,
    REVERSE: tl.constexpr,
    CARRY: tl.constexpr,
    SPIN: tl.constexpr,
    WORD: tl.constexpr,
    NAN: tl.constexpr,
    TINY: tl.constexpr,
    NEAR: tl.constexpr,
    FAR: tl.constexpr,
    GROUPS: tl.constexpr,
    HEIGHT: tl.constexpr,
    UNIT: tl.constexpr,
    LINK: tl.constexpr,
):
    """One tile of one line: see the module."""
    SIZE: tl.constexpr = GROUPS * HEIGHT
    length = TIME * UNIT
    # Time is the slowest axis of the order in which programs start.
    line = tl.program_id(0) % LINES
    tile = tl.program_id(0) // LINES
    row = (line // STATE).to(tl.int64)
    lane = (line % STATE).to(tl.int64)
    a_ptr = enter_line(a_ptr, a_row, a_lane, row, lane, UNIT)
    b_ptr = enter_line(b_ptr, b_row, b_lane, row, lane, UNIT)
    states_ptr = enter_line(states_ptr, states_row, states_lane, row, lane, UNIT)
    out_ptr = enter_line(out_ptr, out_row, out_lane, row, lane, UNIT)
    map_grad_ptr = enter_line(map_grad_ptr, out_row, out_lane, row, lane, UNIT)
    start = tl.zeros((), CARRY)
    if HAS_START:
        start = tl.load(enter_line(start_ptr, start_row, start_lane, row, lane, 1)).to(CARRY)
    first = tl.zeros((), CARRY) if COSTATE else start
    sources = (a_ptr, b_ptr, states_ptr, start)
    begin = ((tl.cdiv(length, SIZE) - 1 - tile) if REVERSE else tile) * SIZE
    a, b, s = fetch_line(sources, begin, length, A_TIME, B_TIME, STATES_TIME, HAS_START, COSTATE, MAP_GRAD, REVERSE, CARRY, GROUPS, HEIGHT)
    p, x, u = scan_line(a, b, GROUPS, HEIGHT, REVERSE, CARRY)
    last_p, last_x, product, loss, _size = summed_up(p, x, u, x, SIZE)

    # What is published of a line lies together: of tiles, each its product, its end and its loss, then of links, each the state, its doubt, and the
    # largest state so far.
    link = tile // LINK
    within = tile % LINK
    tiles = tl.cast(TILES, tl.int64)
    words_ptr += line.to(tl.int64) * (3 * (tiles + tiles // LINK + 1))
    tile_at = words_ptr + tile.to(tl.int64) * 3
    link_at = words_ptr + (tiles + link) * 3
    part = tl.arange(0, 4)
    mine = tl.where(part == 0, last_p, tl.where(part == 1, last_x, loss))
    publish(tile_at + part, mine, part < 3, WORD, NAN)
    place = tl.arange(0, LINK)
    before = place < within
    earlier = tile_at - within * 3 + place * 3
    r = tl.where(before, await_one(earlier, before, CARRY, SPIN), 1.0)
    z = await_one(earlier + 1, before, CARRY, SPIN)
    w = await_one(earlier + 2, before, CARRY, SPIN)
    r, z, w = tl.associative_scan((r, z, w), 0, _combine)
    at_within = place == LINK - 1
    r, z, w = tl.reduce((tl.where(at_within, r, 0.0), tl.where(at_within, z, 0.0), tl.where(at_within, w, 0.0)), 0, _add_three)
    known = await_one(link_at - 3 + part, (part < 3) & (part * 0 + link > 0), CARRY, SPIN)
    h, doubt, largest = tl.reduce((tl.where(part == 0, known, 0.0), tl.where(part == 1, known, 0.0), tl.where(part == 2, known, 0.0)), 0, _add_three)
    h = tl.where(link > 0, h, first)
    largest = tl.where(link > 0, largest, tl.abs(first))
    lost = TINY * largest
    end = (last_p * r) * h + (last_p * z + last_x)
    end_doubt = tl.abs(last_p * r) * doubt + (tl.abs(last_p) * w + loss) * lost
    ours = tl.where(part == 0, end, tl.where(part == 1, end_doubt, tl.maximum(largest, tl.abs(end))))
    publish(link_at + part, ours, (part < 3) & (part * 0 + within == LINK - 1), WORD, NAN)

    h = r * h + z
    doubt = tl.abs(r) * doubt + w * lost
    states = p * h + x
    store_line((out_ptr, map_grad_ptr), begin, length, states, s, MAP_GRAD, REVERSE, GROUPS, HEIGHT)
    size = tl.max(tl.abs(states), 0)
    largest = tl.maximum(tl.maximum(largest, tl.abs(h)), size)
    right = (product * doubt + loss * (TINY * largest) <= tl.maximum(NEAR * size, FAR * largest)) & (tl.abs(end) < float("inf"))
    tl.store(marks_ptr + line, 0, mask=right == 0)
