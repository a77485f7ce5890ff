"""The costates that enter the intervals of a backward pass, from the compositions of the intervals.

Layout: at `work_ptr` products `(sequences, intervals, state)`, the interval at the end of a sequence first; terms alike at `terms_at`; at `doubts_at`
`(sequences, state)`, one where a channel is doubtful. A program owns channels of one sequence and scans its intervals tile by tile; the costates that
enter them are written over the products. Each costate must agree with the one before it, as `leaving = product * entering + term`: where products
overflow, or lose digits that later ones bring back, it does not. Oracle: `pararnn.compiler.reference`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _carried(product, costate, term):
    # A costate of zero stays zero, however large the product.
    return tl.where(costate == 0.0, term, product * costate + term)


@triton.jit
def _combine(product_late, term_late, product_but, term_but, product_early, term_early, product_of_but, term_of_but):
    # The last two are products and terms of all intervals but the earliest, so that the scan says what enters each of them.
    return (
        product_early * product_late,
        _carried(product_early, term_late, term_early),
        product_of_but * product_late,
        _carried(product_of_but, term_late, term_of_but),
    )


@triton.jit
def boundary_kernel(
    work_ptr,
    terms_at,
    doubts_at,
    PARTS,
    STATE,
    AGREE: tl.constexpr,
    SMALLEST: tl.constexpr,
    INTERVALS: tl.constexpr,
    BLOCK_STATE: tl.constexpr,
):
    """All intervals of one sequence, on channels of its own."""
    blocks = tl.cdiv(STATE, BLOCK_STATE)
    sequence = (tl.program_id(0) // blocks).to(tl.int64)
    lane = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK_STATE + tl.arange(0, BLOCK_STATE)[None, :]
    inside = lane < STATE
    interval = tl.arange(0, INTERVALS)[:, None]
    entry = tl.zeros((1, BLOCK_STATE), work_ptr.dtype.element_ty)
    zeros = tl.zeros((INTERVALS, BLOCK_STATE), work_ptr.dtype.element_ty)
    doubt = zeros
    for begin in range(0, PARTS, INTERVALS):
        mask = inside & (begin + interval < PARTS)
        place = work_ptr + (sequence * PARTS + begin + interval) * STATE + lane
        product = tl.load(place, mask=mask, other=1.0)
        term = tl.load(place + terms_at, mask=mask, other=0.0)
        begun = tl.where(interval == 0, _carried(product, entry, term), term)
        _, leaving, _, before = tl.associative_scan((product, begun, zeros + 1.0, zeros), 0, _combine)
        before = tl.where(interval == 0, entry, before)
        expected = _carried(product, before, term)
        size = tl.abs(expected - term) + tl.abs(term)
        agrees = tl.abs(leaving - expected) <= AGREE * size + SMALLEST
        doubt = tl.where(agrees, doubt, 1.0)
        tl.store(place, before, mask=mask)
        entry = tl.sum(tl.where(interval == INTERVALS - 1, leaving, 0.0), 0, keep_dims=True)
    tl.store(work_ptr + doubts_at + sequence * STATE + lane, tl.max(doubt, 0, keep_dims=True), mask=inside)
