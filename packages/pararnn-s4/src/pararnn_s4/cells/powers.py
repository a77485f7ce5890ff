"""All states of `x[t] = A x[t-1] + b u[t]` where `A` is the same at every step: matrix products with powers of `A`, no walk.

Time is cut into chunks of `m` steps. Within a chunk a state is linear in the state the chunk starts from and in the inputs of the chunk,

    x[j] = A^(j+1) entry + sum_{i <= j} A^(j-i) b u[i],

so one matrix holding `A, ..., A^m` and `b, ..., A^(m-1) b` gives all states of all chunks in one product. The entries obey the same recurrence
with `A^m`, and are found by joining neighbours to chunks of twice the length. Powers are made in double precision, by squaring, and rounded
once; with a contraction no power is larger than one, so nothing is amplified.

Cost for each state, with `n` numbers a state: `n + m` multiplications, against `n` of a dense walk and two `rank` of a low-rank one; but it
is one product instead of `T` steps. Oracle: the walk.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from pararnn_s4.kernels.products import exact_bmm

# What one entry of the matrix costs to prepare (made, rounded, laid out), and one number of an entry state to carry, in multiplications of a product.
PREPARE, ENTRY = 30, 40
LONGEST = 64


def states_by_powers(transition: Tensor, column: Tensor, inputs: Tensor, initial: Tensor) -> Tensor:
    """All states `(copies, batch, time, n)`, differentiable by everything, to any order.

    Args:
        transition: `A` of each copy, `(copies, n, n)`, in float64 where it can be.
        column: `b` of each copy, `(copies, n)`, in the dtype of `transition`.
        inputs: `u`, `(batch, time, copies)`, at least one step; its dtype is that of the states.
        initial: the states before the first step, `(batch, copies, n)`.
    """
    batch, length, _ = inputs.shape
    size = column.shape[-1]
    chunk = chunk_length(batch, length, size)
    chunks = -(-length // chunk)
    # Steps after the last one change none before it, so the last chunk is filled up with zeros.
    cut = F.pad(inputs.permute(2, 0, 1), (0, chunks * chunk - length)).reshape(-1, batch * chunks, chunk)
    blocks, leap = _krylov(transition, column, chunk)
    impulses = blocks[..., -1].mT.to(inputs.dtype)
    ends = exact_bmm(cut, impulses.flip(1)).unflatten(1, (batch, chunks))[:, :, :-1]
    entries = entries_by_pairs(leap, ends, initial.transpose(0, 1)).flatten(1, 2)
    operator = _operator(blocks[..., :-1].to(inputs.dtype), impulses)
    states = exact_bmm(torch.cat((entries, cut), dim=-1), operator.flatten(2))
    return states.reshape(-1, batch, chunks * chunk, size)[:, :, :length]


def chunk_length(batch: int, length: int, size: int) -> int:
    """The power of two for which the products of `states_by_powers` are counted to cost least."""
    chunk = 1
    while chunk < min(LONGEST, length) and multiplications(batch, length, size, 2 * chunk) < multiplications(batch, length, size, chunk):
        chunk *= 2
    return chunk


def multiplications(batch: int, length: int, size: int, chunk: int) -> float:
    """Multiplications of one copy, for a chunk of that many steps."""
    chunks = -(-length // chunk)
    within = batch * chunks * chunk * size * (size + chunk)
    between = batch * chunks * size * (chunk + 2 * size + ENTRY)
    prepare = PREPARE * (size + chunk) * chunk * size + (chunk + 2 * math.log2(2 * chunks * chunk)) * size**3
    return within + between + prepare


def _krylov(transition: Tensor, column: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """`A^j [A | b]` for `j < chunk`, `(copies, n, chunk, n + 1)`, and `A^chunk`; `chunk` is a power of two."""
    blocks = torch.cat((transition, column.unsqueeze(-1)), dim=-1).unsqueeze(2)
    power = transition
    while blocks.shape[2] < chunk:
        following = torch.bmm(power, blocks.flatten(2)).reshape(blocks.shape)
        blocks = torch.cat((blocks, following), dim=2)
        power = torch.bmm(power, power)
    return blocks, power


def entries_by_pairs(leap: Tensor, ends: Tensor, initial: Tensor) -> Tensor:
    """The states that chunks start from, `(copies, batch, chunks, n)`.

    Two neighbours are one chunk of twice the length; the entries of those are found first, and lead to the entry of each second neighbour. So there
    are fewer than two products with a power for each chunk.

    Args:
        leap: what a chunk does to the state it starts from, `(copies, n, n)`.
        ends: what the inputs of each chunk but the last add to its end, `(copies, batch, chunks - 1, n)`.
        initial: the state the first chunk starts from, `(copies, batch, n)`.
    """
    if ends.shape[2] == 0:
        return initial.unsqueeze(2)
    early, late = ends[:, :, ::2], ends[:, :, 1::2]
    turned = leap.mT.to(ends.dtype)

    def over(states: Tensor) -> Tensor:
        return exact_bmm(states.flatten(1, 2), turned).reshape(states.shape)

    pairs = late.shape[2]
    joined = over(early[:, :, :pairs]) + late
    first = entries_by_pairs(leap @ leap if pairs else leap, joined, initial)
    second = over(first[:, :, : early.shape[2]]) + early
    woven = torch.stack((first, F.pad(second, (0, 0, 0, first.shape[2] - second.shape[2]))), dim=3).flatten(2, 3)
    return woven[:, :, : ends.shape[2] + 1]


def _operator(powers: Tensor, impulses: Tensor) -> Tensor:
    """What entry and inputs of a chunk do to each of its states, `(copies, n + chunk, chunk, n)`.

    `powers` is `(copies, n, chunk, n)`, the rows of each `A^(j+1)`; `impulses` is `(copies, chunk, n)`, `A^j b`.
    """
    return torch.cat((powers.permute(0, 3, 2, 1), delayed(impulses)), dim=1)


def delayed(signal: Tensor) -> Tensor:
    """`signal[:, j - i]` at `[:, i, j]`, zero where `j < i`: `(copies, length, length, ...)` from `(copies, length, ...)`."""
    length = signal.shape[1]
    # Rows one shorter than the padded signal, laid over its repetitions, begin one place earlier each: no index, and a gradient of plain sums.
    padded = torch.cat((signal, torch.zeros_like(signal)), dim=1).unsqueeze(1)
    repeated = padded.expand(-1, length, *padded.shape[2:]).flatten(1, 2)
    rows = repeated[:, : length * (2 * length - 1)]
    return rows.reshape(rows.shape[0], length, 2 * length - 1, *rows.shape[2:])[:, :, :length]
