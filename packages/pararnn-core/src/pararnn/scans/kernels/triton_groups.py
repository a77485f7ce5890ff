"""What kernels share whose tiles are `(groups, steps, lanes)`, of real numbers: reading and storing them, and what groups compose to.

Groups follow each other in time, and all steps of a group lie in one thread: Triton deals out threads to lanes first, which are next to each other in
memory, then to groups. A thread reads 16 bytes at once where lanes and strides allow. A tile is described by the places of its steps `near`, its
lanes, where lanes are `inside`, and the length of its sequence.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Steps that are read at once where they are walked one by one.
STEPS = tl.constexpr(16)


@triton.jit
def _places(near, step, lane, lane_stride, SPREAD: tl.constexpr):
    """Places of a tile. With SPREAD they are said to go one by one along lanes: unless pointers are known to be aligned, a thread then gets one."""
    place = near * step + lane * lane_stride
    if SPREAD:
        place = tl.max_contiguous(place, [1, 1, lane.shape[2]])
    return place


@triton.jit
def _read(ptr, step, lane_stride, begin, near, lane, mask, CARRY: tl.constexpr, OFFSET: tl.constexpr, SPREAD: tl.constexpr):
    """A tile of numbers, zero where `mask` is false."""
    place = _places(near, step.to(OFFSET), lane, lane_stride, SPREAD)
    return tl.load(ptr + tl.cast(begin, tl.int64) * step + place, mask=mask, other=0.0).to(CARRY)


@triton.jit
def fetch(
    sources,
    begin,
    tile,
    SKIP_FIRST: tl.constexpr,
    MAP_GRAD: tl.constexpr,
    HAS_START: tl.constexpr,
    CARRY: tl.constexpr,
    OFFSET: tl.constexpr,
    SPREAD: tl.constexpr = False,
):
    """Maps, terms, and the states that maps acted on where they are needed. Beyond the end all are zero: what comes of them is not used."""
    a_ptr, a_step, a_lane, b_ptr, b_step, b_lane, states_ptr, states_step, states_lane, start = sources
    near, lane, inside, length = tile
    step = begin + near
    mask = (step < length) & inside
    a = _read(a_ptr, a_step, a_lane, begin, near, lane, mask & (step > 0) if SKIP_FIRST else mask, CARRY, OFFSET, SPREAD)
    b = _read(b_ptr, b_step, b_lane, begin, near, lane, mask, CARRY, OFFSET, SPREAD)
    s = a
    if MAP_GRAD:
        # The walk goes back through time: maps acted on the states one step on, and the last of them on the initial state.
        s = _read(states_ptr + states_step, states_step, states_lane, begin, near, lane, (step + 1 < length) & inside, CARRY, OFFSET, SPREAD)
        if HAS_START:
            s = tl.where(step + 1 == length, start, s)
    return a, b, s


@triton.jit
def store(targets, begin, tile, h, s, MAP_GRAD: tl.constexpr, OFFSET: tl.constexpr, SPREAD: tl.constexpr = False):
    """Store states; with MAP_GRAD they are costates, whose products with the states that maps acted on are the gradients of maps."""
    out_ptr, map_grad_ptr, out_step = targets
    near, lane, inside, length = tile
    mask = (begin + near < length) & inside
    offset = _places(near, out_step.to(OFFSET), lane, 1, SPREAD)
    far = tl.cast(begin, tl.int64) * out_step
    tl.store(out_ptr + far + offset, h.to(out_ptr.dtype.element_ty), mask=mask)
    if MAP_GRAD:
        tl.store(map_grad_ptr + far + offset, (h * s).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def follow(p, x, q, y):
    """Product and end of a part that ends in `x` from zero, followed by one that does in `y`."""
    return q * p, q * x + y


@triton.jit
def compose(p, x, before_p, before_x, q, y, between_p, between_x):
    """Of groups that follow each other, what all of them do, and what all but the last do."""
    return q * p, q * x + y, between_p * p, between_p * x + between_x


@triton.jit
def gather_ends(last, product, growth, size, other_last, other_product, other_growth, other_size):
    """Sums of what is zero but once, the product of growths, and the sum of sizes."""
    return last + other_last, product + other_product, growth * other_growth, size + other_size


@triton.jit
def walk_steps(
    sources,
    targets,
    lane,
    inside,
    length,
    h,
    SKIP_FIRST: tl.constexpr,
    MAP_GRAD: tl.constexpr,
    HAS_START: tl.constexpr,
    CARRY: tl.constexpr,
    OFFSET: tl.constexpr,
):
    """All states from `h`, one after the other."""
    near = tl.arange(0, STEPS).to(OFFSET)[None, :, None]
    tile = (near, lane, inside, length)
    for begin in range(0, length, STEPS):
        a, b, s = fetch(sources, begin, tile, SKIP_FIRST, MAP_GRAD, HAS_START, CARRY, OFFSET)
        x = b
        for step in tl.static_range(STEPS):
            here = near == step
            h = tl.sum(tl.where(here, a, 0.0), 1, keep_dims=True) * h + tl.sum(tl.where(here, b, 0.0), 1, keep_dims=True)
            x = tl.where(here, h, x)
        store(targets, begin, tile, x, s, MAP_GRAD, OFFSET)
