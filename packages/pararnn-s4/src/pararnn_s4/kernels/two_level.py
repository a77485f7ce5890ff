"""The Vandermonde products as matrix products of two short tables, in real arithmetic: the backend `blocked`, and `compiled`.

With `l = a B + b`, `sum_n v_n exp(x_n l) = sum_n [v_n exp(x_n B a)] [exp(x_n b)]`: for each copy a real product of `(length / B, 2 state)`
with `(2 state, B)`, where `B` is about the square root of the length. No matrix of the whole length exists, and the tables, being
short, are made from angles in float64.
"""

from __future__ import annotations

import math
import operator

import torch
from torch import Tensor

from pararnn_s4.kernels.products import exact_bmm

Pair = tuple[Tensor, Tensor]
# Vector instructions take their operands by 16 in float32.
MULTIPLE = 16


def product(v: Pair, x: Pair, length: int, conj: bool) -> Pair:
    """Real and imaginary part of `sum_n v[g, h, n] exp(x[h, n] l)`; twice the real part, and it again, when `conj`."""
    real, imag = table_product(v, x, *steps_for(x, length, len(v[0]) * (1 if conj else 2)), conj)
    return real[..., :length], imag[..., :length]


def moments(u: Tensor, x: Pair, wanted: tuple[bool, bool]) -> tuple[Pair, ...]:
    """Real and imaginary part of the sums of `u_l exp(x l)` and of `l u_l exp(x l)` for real `u`, those that are wanted."""
    starts, steps = steps_for(x, u.shape[-1], len(u))
    return table_moments(in_blocks(u, starts, steps), x, starts, steps, wanted)


def steps_for(x: Pair, length: int, groups: int) -> Pair:
    """The first step of each block, and the steps within a block.

    The tables have `size + groups * number` columns, which is least for blocks of the size `sqrt(groups length)`.
    """
    # Plain numbers under torch.compile too, because the shapes of the tables depend on them: one graph for each length.
    length, groups = operator.index(length), operator.index(groups)
    size = max(1, min(length, -(-math.isqrt(groups * length) // MULTIPLE) * MULTIPLE))
    steps = torch.arange(max(size, -(-length // size)), device=x[0].device, dtype=x[0].dtype)
    return size * steps[: -(-length // size)], steps[:size]


def in_blocks(u: Tensor, starts: Tensor, steps: Tensor) -> Tensor:
    """`u` with zeros behind it as `(groups, copies, blocks, block)`."""
    missing = len(starts) * len(steps) - u.shape[-1]
    padded = torch.nn.functional.pad(u, (0, missing)) if missing else u
    return padded.reshape(*u.shape[:-1], len(starts), len(steps))


def table_product(v: Pair, x: Pair, starts: Tensor, steps: Tensor, conj: bool) -> Pair:
    """The product for all steps of all blocks: rows are groups and blocks, columns the steps within a block."""
    groups, copies, _ = v[0].shape
    parts = 1 if conj else 2
    result = exact_bmm(_rows(v, x, starts, conj), torch.cat(_powers(x, steps), 1))
    # No size is left to be inferred, which a batch without rows would not allow.
    result = result.reshape(copies, parts, groups, len(starts) * len(steps)).transpose(0, 2)
    return result[:, 0], result[:, -1]


def table_moments(u: Tensor, x: Pair, starts: Tensor, steps: Tensor, wanted: tuple[bool, bool]) -> tuple[Pair, ...]:
    """The sums for `u` `(groups, copies, blocks, block)`: first over the columns of `table_product`, then over its rows."""
    groups, copies, blocks, block = u.shape
    columns = torch.cat(_powers(x, steps), 1)
    if wanted[1]:
        columns = torch.cat((columns, columns * steps), 1)
    sums = exact_bmm(u.transpose(0, 1).reshape(copies, groups * blocks, block), columns.transpose(1, 2))
    plain, *weighted = sums.reshape(copies, groups, blocks, 1 + wanted[1], 2, x[0].shape[-1]).unbind(3)
    real, imag = (part.transpose(1, 2).unsqueeze(1) for part in _powers(x, starts))
    # A step in a block is the first one of the block and the step within.
    orders = ((plain,) if wanted[0] else ()) + tuple(later + starts.unsqueeze(-1).unsqueeze(-1) * plain for later in weighted)
    return tuple(_over_rows(order, real, imag) for order in orders)


def _rows(v: Pair, x: Pair, starts: Tensor, conj: bool) -> Tensor:
    """`v exp(x l)` at the first `l` of each block, as a real matrix of each copy: `(copies, parts groups blocks, 2 state)`."""
    real, imag = (part.unsqueeze(1) for part in _powers(x, starts))
    v_real, v_imag = ((2 * part if conj else part).transpose(0, 1).unsqueeze(-1) for part in v)
    left_real, left_imag = v_real * real - v_imag * imag, v_real * imag + v_imag * real
    rows = torch.cat((left_real, -left_imag), 2).unsqueeze(1)
    if not conj:
        rows = torch.cat((rows, torch.cat((left_imag, left_real), 2).unsqueeze(1)), 1)
    return rows.transpose(-1, -2).flatten(1, 3)


def _over_rows(sums: Tensor, real: Tensor, imag: Tensor) -> Pair:
    """Sum over the blocks of the complex product of `sums` `(copies, groups, blocks, 2, state)` and `(copies, 1, blocks, state)`."""
    sum_real, sum_imag = sums.unbind(3)
    parts = (sum_real * real - sum_imag * imag, sum_real * imag + sum_imag * real)
    return parts[0].sum(2).transpose(0, 1), parts[1].sum(2).transpose(0, 1)


def _powers(x: Pair, exponents: Tensor) -> Pair:
    """Real and imaginary part of `exp(x l)`, `(copies, state, exponents)`.

    The angles grow with the length and are reduced to one turn in float64 (where the device has it): rounded in float32, an angle of a
    thousand turns would cost three digits.
    """
    real, imag = (part.unsqueeze(-1) for part in x)
    narrow = real.dtype
    wide = narrow if real.device.type == "mps" else torch.float64
    factors = exponents.to(wide)
    if narrow == wide:
        angle = imag * factors
    else:
        turns = imag.to(wide) / math.tau * factors
        angle = turns.sub_(turns.detach().round()).mul_(math.tau).to(narrow)
    size = torch.exp((real.to(wide) * factors).to(narrow))
    return size * torch.cos(angle), size * torch.sin(angle)
