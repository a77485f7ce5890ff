"""The diagonal scan of real numbers whose steps lie next to each other in memory, in one pass: a program owns one line, and goes through its tiles.

A line is one channel of one row. Rows and channels may have any strides; maps, terms, states and the result have a stride of one along time, or of
zero where one number serves all steps. A tile is `(groups, steps)` in the order of memory, begins at a multiple of its size, and is scanned by all
threads of the program at once; towards earlier times tiles, groups and steps are taken in the opposite order. Beyond the end of a line maps are one
and terms zero, which changes nothing. All steps of a group lie in one thread, which reads 16 bytes at once where lines are aligned. What lies one
step on is taken from there, and for the last step of a group from memory, so that nothing is read at once from places that are not aligned.

Products of maps may leave the range of numbers where the states do not. So beside products and ends the scan bounds what products lost because they
were too small, in units of the least number: one of each step, which grows as states do. This is the `doubt`, as in `triton_stream`, and treated in
the same way; products that are too large make it, or the states, infinite. A doubtful line is done again, one step after the other. The order of all
operations is fixed, so equal inputs give equal bits. Limits: below 2**31 steps. Oracle: `pararnn.scans.reference`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _turned(x, GROUPS: tl.constexpr, HEIGHT: tl.constexpr):
    """The steps of each group in the opposite order."""
    if HEIGHT == 2:
        early, late = tl.split(x)
        turned = tl.join(late, early)
    else:
        even, odd = tl.split(tl.reshape(x, (GROUPS, 2, 2)))
        zero, two = tl.split(even)
        one, three = tl.split(odd)
        turned = tl.reshape(tl.join(tl.join(three, one), tl.join(two, zero)), (GROUPS, 4))
    return turned


@triton.jit
def _moved(x, beside, GROUPS: tl.constexpr, HEIGHT: tl.constexpr, LATER: tl.constexpr):
    """What lies one step later in memory, or earlier; `beside` is that of the last step of each group, or of the first."""
    if HEIGHT == 2:
        early, late = tl.split(x)
        moved = tl.join(late, beside) if LATER else tl.join(beside, early)
    else:
        even, odd = tl.split(tl.reshape(x, (GROUPS, 2, 2)))
        _zero, two = tl.split(even)
        one, _three = tl.split(odd)
        parts = tl.join(odd, tl.join(two, beside)) if LATER else tl.join(tl.join(beside, one), even)
        moved = tl.reshape(parts, (GROUPS, 4))
    return moved


@triton.jit
def _beside(
    ptr,
    STRIDE: tl.constexpr,
    begin,
    x,
    length,
    other,
    GROUPS: tl.constexpr,
    HEIGHT: tl.constexpr,
    LATER: tl.constexpr,
    TURN: tl.constexpr,
    CARRY: tl.constexpr,
):
    """The numbers `x` of a tile, moved by one step."""
    group = tl.arange(0, GROUPS)
    if TURN:
        group = GROUPS - 1 - group
    place = begin + group * HEIGHT + (HEIGHT if LATER else -1)
    known = (place < length) & (place >= 0)
    beside = tl.load(ptr + place * STRIDE, mask=known, other=other).to(CARRY)
    return _moved(x, beside, GROUPS, HEIGHT, LATER)


@triton.jit
def _combine(p, x, u, q, y, v):
    return q * p, q * x + y, tl.abs(q) * u + v


@triton.jit
def _largest(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _in_tile(last_p, last_x, p, u, size, other_last_p, other_last_x, other_p, other_u, other_size):
    return last_p + other_last_p, last_x + other_last_x, _largest(p, other_p), _largest(u, other_u), _largest(size, other_size)


@triton.jit
def enter_line(ptr, row_stride, lane_stride, row, lane, UNIT: tl.constexpr):
    """The first step of a line in memory; strides are counted in units of as many numbers."""
    return ptr + (row * row_stride + lane * lane_stride) * UNIT


@triton.jit
def places_of(begin, GROUPS: tl.constexpr, HEIGHT: tl.constexpr, TURN: tl.constexpr):
    """Where the steps of a tile lie, `(groups, steps)`, groups in the order of the walk."""
    group = tl.arange(0, GROUPS)[:, None]
    if TURN:
        group = GROUPS - 1 - group
    return begin + group * HEIGHT + tl.arange(0, HEIGHT)[None, :]


@triton.jit
def fetch_line(
    sources,
    begin,
    length,
    A_TIME: tl.constexpr,
    B_TIME: tl.constexpr,
    STATES_TIME: tl.constexpr,
    HAS_START: tl.constexpr,
    COSTATE: tl.constexpr,
    MAP_GRAD: tl.constexpr,
    REVERSE: tl.constexpr,
    CARRY: tl.constexpr,
    GROUPS: tl.constexpr,
    HEIGHT: tl.constexpr,
):
    """Maps, terms, and the states that maps acted on where they are needed, in the order of memory. A tile may lie outside of the line."""
    a_ptr, b_ptr, states_ptr, start = sources
    place = places_of(begin, GROUPS, HEIGHT, REVERSE)
    # Before the line all places are negative; a bound that is divisible as they are lets Triton read several at once.
    inside = place < tl.where(begin >= 0, length, -(1 << 30))
    a = tl.load(a_ptr + place * A_TIME, mask=inside, other=1.0).to(CARRY)
    b = tl.load(b_ptr + place * B_TIME, mask=inside, other=0.0).to(CARRY)
    s = a
    if COSTATE:
        # The costate is carried by the map of the step that was walked before; the first of them is zero, whatever carries it.
        a = _beside(a_ptr, A_TIME, begin, a, length, 1.0, GROUPS, HEIGHT, REVERSE, REVERSE, CARRY)
    elif not HAS_START:
        a = tl.where(place == (length - 1 if REVERSE else 0), 1.0, a)
    if MAP_GRAD:
        # Maps acted on the states one step on, and the last of them on the initial state.
        s = tl.load(states_ptr + place * STATES_TIME, mask=inside, other=0.0).to(CARRY)
        s = _beside(states_ptr, STATES_TIME, begin, s, length, 0.0, GROUPS, HEIGHT, not REVERSE, REVERSE, CARRY)
        s = tl.where(place == (0 if REVERSE else length - 1), start, s)
    return a, b, s


@triton.jit
def scan_line(a, b, GROUPS: tl.constexpr, HEIGHT: tl.constexpr, REVERSE: tl.constexpr, CARRY: tl.constexpr):
    """For each step, in the order of the walk, the product of the maps so far, the state that follows from zero, and what products may have lost."""
    if REVERSE:
        a = _turned(a, GROUPS, HEIGHT)
        b = _turned(b, GROUPS, HEIGHT)
    a = tl.reshape(a, (GROUPS * HEIGHT,))
    b = tl.reshape(b, (GROUPS * HEIGHT,))
    return tl.associative_scan((a, b, tl.full((GROUPS * HEIGHT,), 1.0, CARRY)), 0, _combine)


@triton.jit
def summed_up(p, x, u, h, SIZE: tl.constexpr):
    """Of a tile: the product of all maps, where it ends from zero, the largest product, bound of losses, and size of a state `h`."""
    at_last = tl.arange(0, SIZE) == SIZE - 1
    return tl.reduce((tl.where(at_last, p, 0.0), tl.where(at_last, x, 0.0), tl.abs(p), u, tl.abs(h)), 0, _in_tile)


@triton.jit
def store_line(targets, begin, length, h, s, MAP_GRAD: tl.constexpr, REVERSE: tl.constexpr, GROUPS: tl.constexpr, HEIGHT: tl.constexpr):
    """Store states; with MAP_GRAD they are costates, whose products with the states that maps acted on are the gradients of maps."""
    out_ptr, map_grad_ptr = targets
    place = places_of(begin, GROUPS, HEIGHT, REVERSE)
    h = tl.reshape(h, (GROUPS, HEIGHT))
    if REVERSE:
        h = _turned(h, GROUPS, HEIGHT)
    tl.store(out_ptr + place, h.to(out_ptr.dtype.element_ty), mask=place < length)
    if MAP_GRAD:
        tl.store(map_grad_ptr + place, (h * s).to(out_ptr.dtype.element_ty), mask=place < length)


@triton.jit
def _read_step(
    sources,
    step,
    length,
    A_TIME: tl.constexpr,
    B_TIME: tl.constexpr,
    STATES_TIME: tl.constexpr,
    COSTATE: tl.constexpr,
    MAP_GRAD: tl.constexpr,
    REVERSE: tl.constexpr,
    CARRY: tl.constexpr,
):
    """What one step of the walk reads; the first one reads no map without a start, and none is there beyond the end."""
    a_ptr, b_ptr, states_ptr, start = sources
    DIRECTION: tl.constexpr = -1 if REVERSE else 1
    place = length - 1 - step if REVERSE else step
    behind = place - DIRECTION if COSTATE else place
    a = tl.load(a_ptr + behind * A_TIME, mask=(step < length) & (behind >= 0) & (behind < length), other=0.0).to(CARRY)
    b = tl.load(b_ptr + place * B_TIME, mask=step < length, other=0.0).to(CARRY)
    s = a
    if MAP_GRAD:
        ahead = place + DIRECTION
        s = tl.load(states_ptr + ahead * STATES_TIME, mask=step + 1 < length, other=0.0).to(CARRY)
        s = tl.where(step + 1 == length, start, s)
    return a, b, s


@triton.jit
def _write_step(targets, step, length, h, s, MAP_GRAD: tl.constexpr, REVERSE: tl.constexpr):
    out_ptr, map_grad_ptr = targets
    place = length - 1 - step if REVERSE else step
    tl.store(out_ptr + place, h.to(out_ptr.dtype.element_ty), mask=step < length)
    if MAP_GRAD:
        tl.store(map_grad_ptr + place, (h * s).to(out_ptr.dtype.element_ty), mask=step < length)


@triton.jit
def walk_line(
    sources,
    targets,
    length,
    h,
    A_TIME: tl.constexpr,
    B_TIME: tl.constexpr,
    STATES_TIME: tl.constexpr,
    HAS_START: tl.constexpr,
    COSTATE: tl.constexpr,
    MAP_GRAD: tl.constexpr,
    REVERSE: tl.constexpr,
    CARRY: tl.constexpr,
):
    """All states of a line from `h`, one after the other; four steps are read at once."""
    for step in range(0, length, 4):
        a, b, s = _read_step(sources, step, length, A_TIME, B_TIME, STATES_TIME, COSTATE, MAP_GRAD, REVERSE, CARRY)
        a1, b1, s1 = _read_step(sources, step + 1, length, A_TIME, B_TIME, STATES_TIME, COSTATE, MAP_GRAD, REVERSE, CARRY)
        a2, b2, s2 = _read_step(sources, step + 2, length, A_TIME, B_TIME, STATES_TIME, COSTATE, MAP_GRAD, REVERSE, CARRY)
        a3, b3, s3 = _read_step(sources, step + 3, length, A_TIME, B_TIME, STATES_TIME, COSTATE, MAP_GRAD, REVERSE, CARRY)
        if COSTATE or not HAS_START:
            a = tl.where(step == 0, 0.0, a)
        h = a * h + b
        h1 = a1 * h + b1
        h2 = a2 * h1 + b2
        h3 = a3 * h2 + b3
        _write_step(targets, step, length, h, s, MAP_GRAD, REVERSE)
        _write_step(targets, step + 1, length, h1, s1, MAP_GRAD, REVERSE)
        _write_step(targets, step + 2, length, h2, s2, MAP_GRAD, REVERSE)
        _write_step(targets, step + 3, length, h3, s3, MAP_GRAD, REVERSE)
        h = h3


@triton.jit(do_not_specialize=("STATE",))
def line_kernel(
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
    TINY: tl.constexpr,
    NEAR: tl.constexpr,
    FAR: tl.constexpr,
    GROUPS: tl.constexpr,
    HEIGHT: tl.constexpr,
    UNIT: tl.constexpr,
    AHEAD: tl.constexpr,
    ONLY_MARKED: tl.constexpr,
):
    """All of one line: see the module. With ONLY_MARKED it walks lines that another kernel has marked as wrong."""
    if ONLY_MARKED:
        is_right = tl.load(marks_ptr + tl.program_id(0)) != 0
        if is_right:
            return
    SIZE: tl.constexpr = GROUPS * HEIGHT
    length = TIME * UNIT
    row = (tl.program_id(0) // STATE).to(tl.int64)
    lane = (tl.program_id(0) % STATE).to(tl.int64)
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
    targets = (out_ptr, map_grad_ptr)
    wrong = tl.full((), 1 if ONLY_MARKED else 0, tl.int32)
    if not ONLY_MARKED:
        h = first
        largest = tl.abs(first)
        doubt = tl.zeros((), CARRY)
        step = -SIZE if REVERSE else SIZE
        if AHEAD:
            begin = (length - 1) // SIZE * SIZE if REVERSE else 0
            a, b, s = fetch_line(sources, begin, length, A_TIME, B_TIME, STATES_TIME, HAS_START, COSTATE, MAP_GRAD, REVERSE, CARRY, GROUPS, HEIGHT)
        for tile in range(tl.cdiv(length, SIZE)):
            begin = ((tl.cdiv(length, SIZE) - 1 - tile) if REVERSE else tile) * SIZE
            if not AHEAD:
                a, b, s = fetch_line(
                    sources, begin, length, A_TIME, B_TIME, STATES_TIME, HAS_START, COSTATE, MAP_GRAD, REVERSE, CARRY, GROUPS, HEIGHT
                )
            p, x, u = scan_line(a, b, GROUPS, HEIGHT, REVERSE, CARRY)  # type: ignore[possibly-undefined]
            here = s  # type: ignore[possibly-undefined]
            if AHEAD:
                a, b, s = fetch_line(
                    sources, begin + step, length, A_TIME, B_TIME, STATES_TIME, HAS_START, COSTATE, MAP_GRAD, REVERSE, CARRY, GROUPS, HEIGHT
                )
            states = p * h + x
            store_line(targets, begin, length, states, here, MAP_GRAD, REVERSE, GROUPS, HEIGHT)
            last_p, last_x, product, loss, size = summed_up(p, x, u, states, SIZE)
            h = last_p * h + last_x
            largest = tl.maximum(largest, size)
            lost = TINY * largest
            right = (product * doubt + loss * lost <= tl.maximum(NEAR * size, FAR * largest)) & (tl.abs(h) < float("inf"))
            wrong = tl.where(right, wrong, 1)
            doubt = tl.abs(last_p) * doubt + loss * lost
    if wrong != 0:
        # What was stored is stored again, by other threads.
        tl.debug_barrier()
        walk_line(sources, targets, length, first, A_TIME, B_TIME, STATES_TIME, HAS_START, COSTATE, MAP_GRAD, REVERSE, CARRY)
