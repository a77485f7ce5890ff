"""Outputs of a state-space model by a scan over chunks of time: no kernel of the length of the sequence, no transform, no array of all states.

Within a chunk of `m` steps an output is linear in the state the chunk starts from and in the inputs of the chunk, so one matrix product gives the
outputs of all chunks. The entries come from a scan over the chunks, `entry[c+1] = A^m entry[c] + end[c]`: the core's scan of diagonal maps, or
products with a dense `A^m`. The state before the first sample enters there, and the one after the last sample falls out.

Oracle: `ssm.step` in a loop.
"""
# ruff: noqa: N803 -- D is the name of the literature.

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from pararnn import Diagonal, scan
from pararnn.errors import ShapeError
from pararnn.scans.dispatch import full_precision
from pararnn_s4.cells.powers import delayed, entries_by_pairs
from pararnn_s4.kernels.products import exact_bmm
from pararnn_s4.state_space.diagonal_system import SampledDiagonal
from pararnn_s4.state_space.dplr_system import SampledDPLR
from pararnn_s4.state_space.real_form import columns, halves, rows

LONGEST = 128
# What one number of an entry costs in the scan over chunks, and one of the matrix of a chunk to prepare, in multiplications of a product.
ENTRY, PREPARE = 60, 50


class Chunked(Protocol):
    """A sampled model as chunks of `m` steps see it; states are in real form, with `n` numbers a feature."""

    into: Tensor
    """`A^(m-1-i) B`, `(d_model, m, n)`: what each input of a chunk adds to its end."""

    out: Tensor
    """`C A^(j+1)`, `(d_model, n, m, channels)`: what each output sees of the state a chunk starts from."""

    def entries(self, ends: Tensor, initial: Tensor) -> Tensor:
        """The states that chunks start from, `(d_model, batch, chunks, n)`, from the `ends` of all but the last; `initial` `(d_model, batch, n)`."""

    def carried(self, state: Tensor, steps: int) -> Tensor:
        """`A^steps state`, `(d_model, batch, n)`."""


def scan_outputs(
    ssm: Any, u: Tensor, state: Tensor | None = None, *, D: Tensor | None = None, rate: float = 1.0, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Outputs `(batch, channels, d_model, length)` of `ssm` for `u` `(batch, d_model, length)`, and the state after the last sample.

    Args:
        ssm: a `DiagonalSSM` or a `DPLRSSM`.
        u: inputs, real.
        state: the state before the first sample, as `ssm.initial_state` has it; zero if left out.
        D: skip weights `(channels, d_model)`, none if left out.
        rate: the time between samples over that of training.
        lengths: samples of each row that count, `(batch,)`, for the state; outputs past them carry no meaning.

    Raises:
        ShapeError: `u` or `state` does not fit.
    """
    if u.ndim != 3 or u.shape[1] != ssm.d_model:
        raise ShapeError(f"inputs must be (batch, {ssm.d_model}, length), got {tuple(u.shape)}")
    start = ssm.initial_state(u.shape[0]) if state is None else state
    if start.shape != (u.shape[0], ssm.d_model, ssm.state_size):
        raise ShapeError(f"the state must be {(u.shape[0], ssm.d_model, ssm.state_size)}, got {tuple(start.shape)}")
    u = u.to(ssm.dtype)
    if u.shape[-1] == 0:
        return u.new_zeros(u.shape[0], ssm.channels, *u.shape[1:]), start
    with full_precision(u):
        y, after = _outputs(ssm(rate=rate), u, start, D)
        return y, after if lengths is None else ssm.advance(u, start, rate=rate, lengths=lengths)


def multiplications(batch: int, length: int, size: int, channels: int, chunk: int, *, dense: bool) -> float:
    """Multiplications of one feature for chunks of `chunk` steps; `size` real numbers a state, `dense` for a transition that is no diagonal."""
    chunks = -(-length // chunk)
    within = batch * chunks * chunk * (size + (size + chunk) * channels)
    between = batch * chunks * size * (ENTRY + (2 * size if dense else 0))
    return within + between + PREPARE * (size + chunk) * chunk * channels


def chunk_length(batch: int, length: int, size: int, channels: int, *, dense: bool) -> int:
    """The power of two that is counted to cost least."""

    def cost(chunk: int) -> float:
        return multiplications(batch, length, size, channels, chunk, dense=dense)

    # Costs fall and then rise. A loop, because the compiler follows no `min` by key where sizes are symbols.
    chunk = 1
    while chunk < min(LONGEST, length) and cost(2 * chunk) < cost(chunk):
        chunk *= 2
    return chunk


def _outputs(system: Any, u: Tensor, state: Tensor, skip: Tensor | None) -> tuple[Tensor, Tensor]:
    batch, d_model, length = u.shape
    dense = isinstance(system, SampledDPLR)
    initial = columns(state).transpose(0, 1)
    channels, size = system.output.shape[1 if dense else 0], initial.shape[-1]
    chunk = chunk_length(batch, length, size, channels, dense=dense)
    chunks = -(-length // chunk)
    model: Chunked = (_DenseChunks if dense else _DiagonalChunks)(system, chunk, u.dtype)
    cut = F.pad(u.transpose(0, 1), (0, chunks * chunk - length)).reshape(d_model, batch * chunks, chunk)
    ends = exact_bmm(cut, model.into).unflatten(1, (batch, chunks))
    entries = model.entries(ends[:, :, :-1], initial)
    kernel = system.kernel(chunk).to(u.dtype)
    if skip is not None:
        kernel = kernel + F.pad(skip.to(kernel.dtype).unsqueeze(-1), (0, chunk - 1))
    # (d_model, what is known, chunk, channels): the entry, then the inputs of the chunk.
    operator = torch.cat((model.out, delayed(kernel.permute(1, 2, 0))), dim=1)
    y = exact_bmm(torch.cat((entries.flatten(1, 2), cut), dim=-1), operator.flatten(2))
    y = y.reshape(d_model, batch, chunks * chunk, channels)[:, :, :length].permute(1, 3, 0, 2)
    steps = length - (chunks - 1) * chunk
    last = exact_bmm(cut.unflatten(1, (batch, chunks))[:, :, -1, :steps], model.into[:, chunk - steps :])
    after = (model.carried(entries[:, :, -1], steps) + last).transpose(0, 1)
    return y, halves(after) if state.is_complex() else after


class _DiagonalChunks:
    def __init__(self, system: SampledDiagonal, chunk: int, dtype: torch.dtype) -> None:
        powers = torch.ones_like(system.transition).unsqueeze(-1)
        factor = system.transition.unsqueeze(-1)
        # By doubling: A^0 .. A^(2^k - 1) times A^(2^k) are the next 2^k.
        while powers.shape[-1] <= chunk:
            powers = torch.cat((powers, powers * factor), dim=-1)
            factor = factor * factor
        self._powers, self._complex = powers, powers.is_complex()
        output = 2 * system.output if self._complex else system.output
        self.into = columns((system.drive.unsqueeze(-1) * powers[..., :chunk].flip(-1)).mT).to(dtype)
        self.out = rows((output.unsqueeze(-1) * powers[..., 1 : chunk + 1]).mT).to(dtype).permute(1, 3, 2, 0)
        self._chunk = chunk

    def entries(self, ends: Tensor, initial: Tensor) -> Tensor:
        terms = torch.cat((initial.unsqueeze(2), ends), dim=2)
        terms = halves(terms) if self._complex else terms
        leap = Diagonal(self._power(self._chunk, terms.dtype).unsqueeze(1))
        # Features are the batch of the scan, next to the sequences: it works channel by channel, and nothing is laid out anew.
        maps = Diagonal(leap.diagonal.unsqueeze(1))
        return columns(scan(maps, terms))

    def carried(self, state: Tensor, steps: int) -> Tensor:
        power = self._power(steps, (halves(state) if self._complex else state).dtype).unsqueeze(1)
        return columns(power * halves(state)) if self._complex else power * state

    def _power(self, steps: int, dtype: torch.dtype) -> Tensor:
        return self._powers[..., steps].to(dtype)


class _DenseChunks:
    def __init__(self, system: SampledDPLR, chunk: int, dtype: torch.dtype) -> None:
        powers = self._powers = system.powers
        self._exponent = chunk.bit_length() - 1
        self.into = powers.columns(columns(system.constants.drive).unsqueeze(-1), chunk).flip(-1).mT.to(dtype)
        first = system.output @ powers.square(0)
        seen = powers.rows(first, chunk, 0).unflatten(1, (chunk, -1))
        self.out = seen.permute(0, 3, 1, 2).to(dtype)

    def entries(self, ends: Tensor, initial: Tensor) -> Tensor:
        return entries_by_pairs(self._powers.square(self._exponent), ends, initial)

    def carried(self, state: Tensor, steps: int) -> Tensor:
        return self._powers.apply(state.mT, steps).mT
