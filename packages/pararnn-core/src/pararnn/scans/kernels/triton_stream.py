"""The diagonal scan of real numbers in one pass over memory: a program owns channels of one sequence and goes through its time tile by tile.

Layout: as in `triton_walk`. The next tiles are on their way to shared memory while one is scanned, by all threads of the program at once: a tile is
`(groups, steps, lanes)`, where groups follow each other in time and all steps of a group lie in one thread. A thread goes through its group
from zero; the groups are composed, across threads; then it goes through its group again, from where that starts. What the last group ends
with is carried to the next tile. No program waits for another, and the order of all operations is fixed.

Products of maps may leave the range of numbers where the states do not. So each lane carries how far its state may be off by products
that were too small to be told from zero, the `doubt`; products that are too large make it, or the states, infinite. Where that is too much at
the end of any tile, the program goes through its sequence once more, one step after the other. Too much is more than NEAR of the states of the
tile, and FAR of the largest that the lane has had. Limits: below 2**31 steps. Oracle: `pararnn.scans.reference`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pararnn.scans.kernels.triton_groups import compose, fetch, follow, gather_ends, store, walk_steps
from pararnn.scans.kernels.triton_steps import bounds_of, enter


@triton.jit(do_not_specialize=("ROWS", "SEGMENTS"))
def stream_kernel(
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
    ROWS,
    SEGMENTS,
    TIME,
    STATE,
    HAS_START: tl.constexpr,
    COSTATE: tl.constexpr,
    MAP_GRAD: tl.constexpr,
    REVERSE: tl.constexpr,
    PACKED: tl.constexpr,
    CARRY: tl.constexpr,
    OFFSET: tl.constexpr,
    TINY: tl.constexpr,
    NEAR: tl.constexpr,
    FAR: tl.constexpr,
    BLOCK_TIME: tl.constexpr,
    BLOCK_STATE: tl.constexpr,
    GROUPS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """All of one sequence, on channels of its own: see the module. `ROWS` is not read."""
    SKIP_FIRST: tl.constexpr = COSTATE or not HAS_START
    HEIGHT: tl.constexpr = BLOCK_TIME // GROUPS
    blocks = tl.cdiv(STATE, BLOCK_STATE)
    whole = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK_STATE
    row = (tl.program_id(0) // blocks // SEGMENTS).to(tl.int64)
    segment = ((tl.program_id(0) // blocks) % SEGMENTS).to(tl.int64)
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
    lane = tl.arange(0, BLOCK_STATE).to(OFFSET)[None, None, :]
    inside = whole + lane < STATE
    start = tl.zeros((1, 1, BLOCK_STATE), CARRY)
    if HAS_START:
        start = tl.load(start_ptr + row * start_row + segment * start_segment + (whole + lane) * start_lane, mask=inside, other=0.0).to(CARRY)
    first = tl.zeros((1, 1, BLOCK_STATE), CARRY) if COSTATE else start
    sources = (a_ptr, a_step, a_lane, b_ptr, b_step, b_lane, states_ptr, states_step, states_lane, start)
    targets = (out_ptr, map_grad_ptr, out_step)
    group = tl.arange(0, GROUPS)[:, None, None]
    height = tl.arange(0, HEIGHT)[None, :, None]
    tile = ((group * HEIGHT + height).to(OFFSET), lane, inside, length)
    ends = height == HEIGHT - 1
    at_last = group == GROUPS - 1

    h = first
    largest = tl.abs(first)
    doubt = tl.zeros_like(first)
    wrong = tl.zeros((1, 1, BLOCK_STATE), tl.int32)
    for begin in tl.range(0, length, BLOCK_TIME, num_stages=STAGES):
        a, b, s = fetch(sources, begin, tile, SKIP_FIRST, MAP_GRAD, HAS_START, CARRY, OFFSET)
        p, x = tl.associative_scan((a, b), 1, follow)
        p = tl.sum(tl.where(ends, p, 0.0), 1, keep_dims=True)
        x = tl.sum(tl.where(ends, x, 0.0), 1, keep_dims=True)
        p, _x, q, y = tl.associative_scan((p, x, tl.full(p.shape, 1.0, CARRY), tl.zeros(p.shape, CARRY)), 0, compose)
        b = tl.where(height == 0, a * (q * h + y) + b, b)
        _p, x = tl.associative_scan((a, b), 1, follow)
        store(targets, begin, tile, x, s, MAP_GRAD, OFFSET)
        none = tl.zeros(a.shape, CARRY)
        last, product, growth, size = tl.reduce((tl.where(ends, x, 0.0), none, tl.maximum(tl.abs(a), 1.0), tl.abs(x)), 1, gather_ends, keep_dims=True)
        parts = (tl.where(at_last, last, 0.0), tl.where(at_last, tl.abs(p), 0.0), growth, size)
        h, product, growth, size = tl.reduce(parts, 0, gather_ends, keep_dims=True)
        largest = tl.maximum(largest, size)
        doubt = product * doubt + growth * (TINY * largest)
        right = (doubt <= tl.maximum(NEAR * size, FAR * largest)) & (size < float("inf"))
        wrong = tl.where(right, wrong, 1)

    if tl.max(tl.ravel(wrong), 0) > 0:
        # What was stored is stored again, by other threads.
        tl.debug_barrier()
        walk_steps(sources, targets, lane, inside, length, first, SKIP_FIRST, MAP_GRAD, HAS_START, CARRY, OFFSET)
