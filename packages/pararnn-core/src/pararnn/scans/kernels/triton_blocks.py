"""The block-diagonal scan: a program owns channels of one chunk of one sequence and walks its steps, with all slots of a channel in one thread.

Layout: maps `(rows, time, row slot, column slot, channels)` and terms `(rows, time, slots, channels)` with any strides, results contiguous. Chunks
are counted along the walk, each sequence begins a new one. `mode` says what a program leaves:

- `walk`: the state after each step, and the gradients of maps where it is asked for them; with CHECK it marks sequences in which chunks do not end
  where their products said;
- `totals`: the product of the maps of its chunk, and where the chunk ends if it starts from zero;
- `starts`: the state before each step, which of totals are the states that chunks start from.

Limits: real numbers, as many slots as registers hold. Oracle: `pararnn.scans.reference`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pararnn.scans.kernels.triton_steps import bounds_of, enter

UNKNOWN = ("a_time", "b_time", "states_time", "CHANNELS", "CHUNKS")


@triton.jit
def _times(maps, vectors):
    """Maps `(slots, slots, lanes)` times vectors `(slots, lanes)`."""
    return tl.sum(maps * vectors[None, :, :], 1)


@triton.jit(do_not_specialize=UNKNOWN)
def block_kernel(
    a_ptr,
    a_row,
    a_time,
    a_to,
    a_from,
    a_lane,
    b_ptr,
    b_row,
    b_time,
    b_slot,
    b_lane,
    start_ptr,
    start_row,
    start_segment,
    start_slot,
    start_lane,
    states_ptr,
    states_row,
    states_time,
    states_slot,
    states_lane,
    out_ptr,
    map_out_ptr,
    total_maps_ptr,
    total_ends_ptr,
    bounds_ptr,
    chunks_ptr,
    owners_ptr,
    marks_ptr,
    SEGMENTS,
    TIME,
    CHANNELS,
    CHUNKS,
    LENGTH,
    MODE: tl.constexpr,
    HAS_START: tl.constexpr,
    START_OF_CHUNK: tl.constexpr,
    COSTATE: tl.constexpr,
    MAP_GRAD: tl.constexpr,
    CHECK: tl.constexpr,
    ONLY_MARKED: tl.constexpr,
    REVERSE: tl.constexpr,
    PACKED: tl.constexpr,
    CARRY: tl.constexpr,
    ALLOWED: tl.constexpr,
    SLOTS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One chunk of LENGTH steps, on channels of its own: see the module. `start` holds a state for each sequence or, if so said, each chunk."""
    # The first map of a sequence has nothing to act on where that starts from zero.
    SKIP_FIRST: tl.constexpr = COSTATE or not HAS_START
    blocks = tl.cdiv(CHANNELS, BLOCK)
    block = tl.program_id(0) % blocks
    chunk = (tl.program_id(0) // blocks % CHUNKS).to(tl.int64)
    row = (tl.program_id(0) // blocks // CHUNKS).to(tl.int64)
    segment = chunk * 0
    base = segment
    if PACKED:
        segment = tl.load(owners_ptr + chunk)
        base = tl.load(chunks_ptr + segment)
    low, high = bounds_of(bounds_ptr, segment, TIME, PACKED)
    length = (high - low).to(tl.int32)
    begin = ((chunk - base) * LENGTH).to(tl.int32)
    end = tl.minimum(begin + LENGTH, length)
    mark = (row * SEGMENTS + segment) * blocks + block
    if ONLY_MARKED:
        end = tl.where(tl.load(marks_ptr + mark) == 0, end, begin)

    whole = block.to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK).to(tl.int64)
    slot = tl.arange(0, PADDED).to(tl.int64)
    to = slot[:, None, None]
    by = slot[None, :, None]
    inside = (slot[:, None] < SLOTS) & (whole + lane < CHANNELS)[None, :]
    full = (to < SLOTS) & (by < SLOTS) & (whole + lane < CHANNELS)[None, None, :]
    a_ptr, a_step = enter(a_ptr, a_row, a_time, a_lane, row, whole, low, high, REVERSE)
    b_ptr, b_step = enter(b_ptr, b_row, b_time, b_lane, row, whole, low, high, REVERSE)
    states_ptr, states_step = enter(states_ptr, states_row, states_time, states_lane, row, whole, low, high, REVERSE)
    out_time = tl.cast(CHANNELS, tl.int64) * SLOTS
    out_ptr, out_step = enter(out_ptr, TIME * out_time, out_time, 1, row, whole, low, high, REVERSE)
    map_out_ptr, map_step = enter(map_out_ptr, TIME * out_time * SLOTS, out_time * SLOTS, 1, row, whole, low, high, REVERSE)
    if COSTATE:
        # The costate is carried by the map of the step that was walked before.
        a_ptr -= a_step
    a_near = to * a_to + by * a_from + lane[None, None, :] * a_lane
    b_near = slot[:, None] * b_slot + lane[None, :] * b_lane
    out_near = slot[:, None] * CHANNELS + lane[None, :]
    map_near = (to * SLOTS + by) * CHANNELS + lane[None, None, :]
    # As a row of vectors, for what is multiplied from the right.
    row_near = by * states_slot + lane[None, None, :] * states_lane
    row_inside = (by < SLOTS) & (whole + lane < CHANNELS)[None, None, :]

    start = tl.zeros((PADDED, BLOCK), CARRY)
    if HAS_START or START_OF_CHUNK:
        of = segment
        if START_OF_CHUNK:
            of = chunk
        place = row * start_row + of * start_segment + (whole + lane)[None, :] * start_lane + slot[:, None] * start_slot
        start = tl.load(start_ptr + place, mask=inside, other=0.0).to(CARRY)
    h = start
    if MODE == "totals":
        h = tl.zeros((PADDED, BLOCK), CARRY)
    product = tl.where((to == by) & full, 1.0, 0.0).to(CARRY)
    size = tl.zeros((BLOCK,), CARRY)
    for step in tl.range(begin, end, num_stages=STAGES):
        known = full
        if SKIP_FIRST:
            known = full & (by * 0 + step > 0)
        maps = tl.load(a_ptr + step * a_step + a_near, mask=known, other=0.0).to(CARRY)
        term = tl.load(b_ptr + step * b_step + b_near, mask=inside, other=0.0).to(CARRY)
        if MODE == "starts":
            tl.store(out_ptr + step * out_step + out_near, h.to(out_ptr.dtype.element_ty), mask=inside)
        h = _times(maps, h) + term
        if MODE == "totals":
            product = tl.sum(tl.expand_dims(maps, 2) * tl.expand_dims(product, 0), 1)
        if MODE == "walk":
            if MAP_GRAD:
                further = row_inside & (by * 0 + step + 1 < length)
                state = tl.load(states_ptr + (step + 1) * states_step + row_near, mask=further, other=0.0).to(CARRY)
                tl.store(map_out_ptr + step * map_step + map_near, (h[:, None, :] * state).to(map_out_ptr.dtype.element_ty), mask=full)
            tl.store(out_ptr + step * out_step + out_near, h.to(out_ptr.dtype.element_ty), mask=inside)
            if CHECK:
                size = tl.maximum(size, tl.max(tl.abs(h), 0))
    maps_at = (row * CHUNKS + chunk) * SLOTS * SLOTS * CHANNELS + whole + map_near
    ends_at = (row * CHUNKS + chunk) * SLOTS * CHANNELS + whole + out_near
    if MODE == "totals":
        tl.store(total_maps_ptr + maps_at, product, mask=full)
        tl.store(total_ends_ptr + ends_at, h, mask=inside)
    if CHECK:
        expected = _times(tl.load(total_maps_ptr + maps_at, mask=full, other=0.0), start) + tl.load(total_ends_ptr + ends_at, mask=inside, other=0.0)
        apart = ((tl.abs(h - expected) <= (ALLOWED * size)[None, :]) == 0) & inside
        tl.store(marks_ptr + mark, 0, mask=tl.max(tl.max(apart.to(tl.int32), 1), 0) > 0)
