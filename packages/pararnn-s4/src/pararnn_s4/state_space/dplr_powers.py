"""Krylov products of a dense transition by repeated squaring: kernels, responses and states of a DPLR model without Fourier transforms.

A lag is written `l = m b + a` with `m` about the square root of the length:

    C A^l B = (C A^(m b)) (A^a B)

so that a kernel is one product of `length / m` rows with `m` columns. Columns and rows double with each power `A^(2^k)`, and so do states
that are gathered from blocks of inputs. In the basis of a DPLR model with `Re rate <= 0` the trapezoidal transition is a contraction: squaring
adds up rounding errors of at most one unit a step, and in double precision none of them is seen in a float32 kernel (squared in float32, FouT
would be off by 5e-5). Rows, columns and powers of the parameters are in double precision; the products with the length in them are in the
dtype of the result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn_s4.kernels.products import exact_bmm

# The last rows come from as many applications of one power: doubling takes as many multiplications for them, and two more squarings, of
# which each costs as much as ten applications to a few rows.
TAIL = 8


class Powers:
    """`A^(2^k)` of a matrix `(copies, size, size)`, each computed when it is first asked for."""

    def __init__(self, matrix: Tensor) -> None:
        self._squares = [matrix]

    def square(self, exponent: int, dtype: torch.dtype | None = None) -> Tensor:
        """`A^(2^exponent)`, `(copies, size, size)`, in `dtype`."""
        while len(self._squares) <= exponent:
            last = self._squares[-1]
            self._squares.append(torch.bmm(last, last))
        return self._squares[exponent].to(dtype or self._squares[0].dtype)

    def columns(self, start: Tensor, count: int) -> Tensor:
        """`A^a start` for `a = 0 .. count - 1`: `(copies, size, count * width)` from `start` `(copies, size, width)`, the powers outermost."""
        width, exponent, columns = start.shape[-1], 0, start
        while (missing := count * width - columns.shape[-1]) > 0:
            columns = torch.cat((columns, exact_bmm(self.square(exponent, start.dtype), columns[..., :missing])), dim=-1)
            exponent += 1
        return columns

    def rows(self, start: Tensor, count: int, stride: int) -> Tensor:
        """`start A^(b 2^stride)` for `b = 0 .. count - 1`: `(copies, count * height, size)` from `start` `(copies, height, size)`."""
        height, exponent, rows = start.shape[-2], stride, start
        while (missing := count * height - rows.shape[-2]) > (TAIL - 1) * rows.shape[-2]:
            rows = torch.cat((rows, exact_bmm(rows[:, :missing], self.square(exponent, start.dtype))), dim=-2)
            exponent += 1
        blocks = [rows]
        while missing > 0:
            blocks.append(exact_bmm(blocks[-1][:, :missing], self.square(exponent, start.dtype)))
            missing -= blocks[-1].shape[-2]
        return torch.cat(blocks, dim=-2)

    def apply(self, state: Tensor, count: int) -> Tensor:
        """`A^count state` for `state` `(copies, size, width)`."""
        for exponent in range(count.bit_length()):
            if count >> exponent & 1:
                state = exact_bmm(self.square(exponent, state.dtype), state)
        return state

    def sum(self, start: Tensor, count: int) -> Tensor:
        """`A^l start` summed over `l = 0 .. count - 1`, for `start` `(copies, size, width)`."""
        # Over the lower bits of the count, and over as many steps as the bit at hand says.
        total, doubled = torch.zeros_like(start), start
        for exponent in range(count.bit_length()):
            if count >> exponent & 1:
                total = doubled + exact_bmm(self.square(exponent, start.dtype), total) if count & ((1 << exponent) - 1) else doubled
            if count >> exponent + 1:
                doubled = doubled + exact_bmm(self.square(exponent, start.dtype), doubled)
        return total

    def apply_each(self, state: Tensor, counts: Tensor, largest: int) -> Tensor:
        """`A^counts[i]` times column `i` of `state` `(copies, size, batch)`, no count above `largest`."""
        for exponent in range(largest.bit_length()):
            has_bit = (counts >> exponent & 1).bool()
            state = torch.where(has_bit, exact_bmm(self.square(exponent, state.dtype), state), state)
        return state


def products(powers: Powers, output: Tensor, start: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """`output A^l start` for `l = 0 .. length - 1`, in `dtype`.

    `output` `(copies, channels, size)`, `start` `(copies, size, width)` -> `(width, channels, copies, length)`.
    """
    copies, channels, _ = output.shape
    width = start.shape[-1]
    stride = _stride(length, width, channels)
    block = min(1 << stride, length)
    blocks = -(-length // block)
    columns = powers.columns(start, block).to(dtype)
    rows = powers.rows(output, blocks, stride).to(dtype)
    result = exact_bmm(rows, columns).reshape(copies, blocks, channels, block, width)
    return result.permute(4, 2, 0, 1, 3).reshape(width, channels, copies, blocks * block)[..., :length]


def gathered(powers: Powers, drive: Tensor, latest_first: Tensor) -> Tensor:
    """`sum_l A^l drive u_l`, the state `(copies, size, batch)` that inputs `(batch, copies, length)`, the latest first, leave behind."""
    batch, copies, length = latest_first.shape
    stride = _stride(length, 1, batch)
    block = min(1 << stride, length)
    blocks = -(-length // block)
    padded = torch.nn.functional.pad(latest_first, (0, blocks * block - length))
    inputs = padded.reshape(batch, copies, blocks, block).permute(1, 3, 2, 0).reshape(copies, block, blocks * batch)
    columns = powers.columns(drive.unsqueeze(-1), block).to(inputs.dtype)
    states = exact_bmm(columns, inputs)
    exponent = stride
    # Neighbouring blocks are joined: the later one, which comes first, and the earlier one carried over it.
    while blocks > 1:
        if blocks % 2:
            states = torch.nn.functional.pad(states, (0, batch))
            blocks += 1
        pairs = states.reshape(copies, states.shape[1], blocks // 2, 2, batch)
        early = pairs[:, :, :, 1].reshape(copies, states.shape[1], blocks // 2 * batch)
        states = pairs[:, :, :, 0].reshape_as(early) + exact_bmm(powers.square(exponent, states.dtype), early)
        blocks, exponent = blocks // 2, exponent + 1
    return states


def _stride(length: int, width: int, height: int) -> int:
    """The power of two of the block: `width` columns for each place in it and `height` rows for each block cost least together."""
    balance = max(length * height // max(width, 1), 1)
    return min((balance.bit_length()) // 2, (length - 1).bit_length())
