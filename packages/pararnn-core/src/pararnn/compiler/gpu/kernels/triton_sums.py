"""Sums of parts in a fixed order, so that they are the same to the bit from run to run.

Layout: parts `(groups, parts, size)`, contiguous from `parts_at` on; sums `(groups, size)`. A program owns some of the sums of one group.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Numbers that a program adds at once.
TILE = 4096
# The group that is limited, where none is.
UNLIMITED = -1


@triton.jit
def sum_kernel(
    parts_ptr,
    sums_ptr,
    limited_ptr,
    parts_at,
    PARTS,
    SIZE,
    LIMITED: tl.constexpr,
    BOUND: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """The sums of BLOCK_SIZE places over all parts.

    Those of group LIMITED are gradients by numbers at `limited_ptr`: zero where these are beyond BOUND and a descent step leads further away.
    """
    blocks = tl.cdiv(SIZE, BLOCK_SIZE)
    group = (tl.program_id(0) // blocks).to(tl.int64)
    place = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)[None, :]
    part = tl.arange(0, BLOCK_PARTS)[:, None]
    parts_ptr += parts_at + group * PARTS * SIZE + place
    total = tl.zeros((BLOCK_PARTS, BLOCK_SIZE), parts_ptr.dtype.element_ty)
    for begin in range(0, PARTS, BLOCK_PARTS):
        mask = (place < SIZE) & (begin + part < PARTS)
        total += tl.load(parts_ptr + (begin + part).to(tl.int64) * SIZE, mask=mask, other=0.0)
    result = tl.sum(total, 0, keep_dims=True)
    if LIMITED >= 0:
        number = tl.load(limited_ptr + place, mask=place < SIZE, other=0.0).to(result.dtype)
        away = (tl.abs(number) > BOUND) & (result * number < 0.0)
        result = tl.where((group == LIMITED) & away, 0.0, result)
    tl.store(sums_ptr + group * SIZE + place, result.to(sums_ptr.dtype.element_ty), mask=place < SIZE)


def blocks_of(parts: int) -> tuple[int, int, int]:
    """Parts and sums of a program, and its warps."""
    block_parts = min(512, max(1, 1 << (parts - 1).bit_length()))
    block_size = max(8, min(128, TILE // block_parts // 4))
    return block_parts, block_size, max(1, min(8, block_parts * block_size // 256))
