"""What the shooting kernels share, as source text: one correction of the entry states of intervals that lie side by side.

Intervals lie along the first axis of a tile. What is known of the entry of an interval stands with the interval before it, as the end that is
expected of that one.
"""

from __future__ import annotations

# An update below the root of its tolerance, times REACH, is taken to be in reach of one correction with the slopes at hand. A sweep that does not
# at least halve the update is a strike; at the fourth in a row the walk takes over. See `pararnn.solver.iteration`, which sees whole sequences and
# merges intervals: here a program sees few channels, and where each has two states to choose from, updates are as large as the states for a while.
SOURCE = '''
REACH: tl.constexpr = tl.constexpr(4.0)
SHRINK: tl.constexpr = tl.constexpr(0.5)
STRIKES: tl.constexpr = tl.constexpr(4)


@triton.jit
def is_finite(x):
    return tl.abs(x) < float("inf")


@triton.jit
def compose(slope, term, later_slope, later_term):
    return later_slope * slope, later_slope * term + later_term


@triton.jit
def second_last(last, before, several, later_last, later_before, later_several):
    return later_last, tl.where(later_several > 0, later_before, last), later_several * 0 + 1


@triton.jit
def from_before(x, first, is_first):
    """Of each interval what stands with the one before; `first` for the first of them."""
    # A gather takes a third longer: it goes through shared memory.
    _, before, _ = tl.associative_scan((x, x, is_first.to(tl.int32) * 0), 0, second_last)
    return tl.where(is_first, first, before)


@triton.jit
def both_larger(x, y, other_x, other_y):
    return tl.maximum(x, other_x), tl.maximum(y, other_y)


@triton.jit
def correct(end, product, expected, brought, is_first, has_next, ABSOLUTE, RELATIVE):
    """New expected ends from the `end` that each interval has led to, with its `product` of slopes.

    `brought` is the update of the entry of the first interval. Gives besides the expected ends the update, the same in tolerances, the largest of
    these, and whether all are in reach of one more correction.
    """
    mismatch = end - expected
    finite = is_finite(mismatch)
    residual = tl.where(finite, mismatch, 0.0)
    # Where an interval ran into infinity there is nothing to learn; a slope of zero moves the next entry to where this one ends.
    slope = tl.where(is_finite(product), product, 0.0)
    _, update = tl.associative_scan((slope, residual + tl.where(is_first, slope * brought, 0.0)), 0, compose)
    # Not `expected + update`: where the entry before is right, this is the end to the bit.
    corrected = end + (update - residual)
    corrected = tl.where(is_finite(corrected), corrected, tl.where(finite, end, expected))
    size = ABSOLUTE + RELATIVE * tl.abs(end)
    ratio = tl.where(finite & is_finite(update), tl.abs(update) / size, float("inf"))
    ratio = tl.where(has_next, ratio, 0.0)
    reach = tl.where(has_next, tl.abs(update) * tl.abs(update) / (REACH * REACH * size), 0.0)
    worst, farthest = tl.reduce((ratio, reach), 1, both_larger)
    worst, farthest = tl.reduce((worst, farthest), 0, both_larger)
    near = (farthest <= 1.0) & (worst < float("inf"))
    return corrected, update, ratio, worst, near


@triton.jit
def inside_error(ratio, growth, product):
    """Updates of entries in tolerances, times what becomes of them inside the intervals. No update is no error, however an error would grow."""
    grown = tl.where(product == product, ratio * growth, float("inf"))
    grown = tl.where(grown == grown, grown, float("inf"))
    return tl.where(ratio == 0.0, 0.0, grown)
'''
