"""The block-diagonal scan on a GPU, and its backward; written in Triton.

With many lanes, or short time, one walk through all steps. Else the time is cut into chunks: a first pass multiplies the maps of each chunk and
walks it from zero, a walk over the chunks gives what each starts from, and a second pass walks them again from there. Where products of maps
overflow or underflow and the states do not, a chunk does not end where its product said; such sequences are walked as a whole. Oracle:
`pararnn.scans.reference`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pararnn.scans.edges import heads
from pararnn.scans.launches import LANES, chunk_of
from pararnn.scans.segments import Offsets
from pararnn.scans.triton_memory import Sequences, carried, processors, strided
from pararnn.structures.base import Structure

STAGES = 6


class BlockScan:
    """The scan, and the costates of its backward, as the operator calls them."""

    # Half precision needs no conversion before: kernels carry it in single precision.
    reads_half = True

    def __call__(
        self,
        transition: Structure,
        bias: Tensor,
        initial: Tensor | None,
        *,
        offsets: Offsets | None = None,
        reverse: bool = False,
        chunk: int | None = None,
    ) -> Tensor:
        """`h[t] = A[t] h[t-1] + b[t]` for `bias` `(rows, time, state)`; see `pararnn.scans.chunked.scan`. `chunk` overrides the choice of steps."""
        (maps,) = transition.leaves()
        return _scan(maps, bias, initial, None, offsets, reverse=reverse, costate=False, chunk=chunk)[0]

    def costates(
        self,
        transition: Structure,
        grad: Tensor,
        *,
        states: Tensor | None = None,
        initial: Tensor | None = None,
        offsets: Offsets | None = None,
        reverse: bool = False,
        chunk: int | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """The gradient of each term from the gradient `grad` of the states, `lam[t] = g[t] + A[t+1]^T lam[t+1]`; not differentiable.

        With `states`, which the scan gave for the same arguments, also the gradients of the maps, from the same pass.
        """
        (maps,) = transition.leaves()
        costate, map_grad = _scan(maps.transpose(2, 3), grad, None, states, offsets, reverse=not reverse, costate=True, chunk=chunk)
        if map_grad is None:
            return costate, None
        if initial is not None and costate.numel():
            _grad_of_first_maps(map_grad, costate, initial, offsets, reverse=reverse)
        return costate, (map_grad,)


scan = BlockScan()


def _grad_of_first_maps(map_grad: Tensor, costate: Tensor, initial: Tensor, offsets: Offsets | None, *, reverse: bool) -> None:
    """The first map of each sequence acts on its initial state."""
    slots, channels = map_grad.shape[3:]
    if offsets is None:
        first = -1 if reverse else 0
        torch.mul(costate[:, first].unflatten(-1, (slots, 1, channels)), initial[:, 0].unflatten(-1, (1, slots, channels)), out=map_grad[:, first])
        return
    at, segments = heads(offsets, costate, reverse=reverse)
    pairs = costate[:, at].unflatten(-1, (slots, 1, channels)) * initial[:, segments].unflatten(-1, (1, slots, channels))
    map_grad.index_copy_(1, at, pairs)


def _scan(
    maps: Tensor,
    terms: Tensor,
    initial: Tensor | None,
    states: Tensor | None,
    offsets: Offsets | None,
    *,
    reverse: bool,
    costate: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """States of the walk, and with `states` the gradients of maps."""
    rows, length, size = terms.shape
    slots = maps.shape[3]
    channels = size // slots
    out = torch.empty_like(terms, memory_format=torch.contiguous_format)
    map_grad = None if states is None else maps.new_empty(rows, length, slots, slots, channels)
    if out.numel() == 0:
        return out, map_grad
    sequences = Sequences.of(offsets, length)
    if chunk is None:
        chunk = chunk_of(sequences.longest, rows * length, channels, processors=processors(terms.device))
    kinds = {"COSTATE": costate, "REVERSE": reverse, "slots": slots, "dtype": terms.dtype}
    results: dict[str, Any] = {"out": out, "map_out": map_grad}
    whole = max(sequences.longest, 1)
    if chunk >= whole:
        _launch("walk", maps, terms, initial, states, sequences, whole, results, kinds)
        return out, map_grad
    count, firsts, _ = sequences.parts(chunk)
    carry = torch.float64 if terms.dtype == torch.float64 else torch.float32
    totals = terms.new_empty((rows, count, slots, slots, channels), dtype=carry)
    ends = terms.new_empty((rows, count, size), dtype=carry)
    starts = torch.empty_like(ends)
    marks = torch.full((rows * sequences.count * math.ceil(channels / LANES),), -1, dtype=torch.int32, device=terms.device)
    passes = {"totals": totals, "ends": ends, "marks": marks}
    _launch("totals", maps, terms, initial, None, sequences, chunk, passes, kinds)
    over = Sequences.of(None if offsets is None else tuple(firsts), count)
    _launch("starts", totals, ends, initial, None, over, max(over.longest, 1), {"out": starts}, kinds | {"COSTATE": False, "REVERSE": False})
    _launch("walk", maps, terms, initial, states, sequences, chunk, results | passes, kinds, starts=starts)
    _launch("walk", maps, terms, initial, states, sequences, whole, results | {"marks": marks}, kinds, only_marked=True)
    return out, map_grad


def _launch(
    mode: str,
    maps: Tensor,
    terms: Tensor,
    initial: Tensor | None,
    states: Tensor | None,
    sequences: Sequences,
    chunk: int,
    results: dict[str, Any],
    kinds: dict[str, Any],
    *,
    starts: Tensor | None = None,
    only_marked: bool = False,
) -> None:
    """One pass over chunks of `chunk` steps; `starts` are what they start from, the initial states or zero where there is only one in a sequence."""
    from pararnn.scans.kernels.triton_blocks import block_kernel

    rows, length, size = terms.shape
    slots = kinds["slots"]
    channels = size // slots
    count, *parts = sequences.parts(chunk)
    bounds, firsts, owners = sequences.tensors(*parts, stand_in=terms)
    start = initial if starts is None else starts
    # What a pass does not read or write is stood in for by what it reads.
    slotted = [(terms if tensor is None else tensor).detach().unflatten(-1, (slots, channels)) for tensor in (terms, start, states)]
    places = [terms if results.get(name) is None else results[name] for name in ("out", "map_out", "totals", "ends")]
    marks = terms if results.get("marks") is None else results["marks"]
    with torch.cuda.device_of(terms):
        block_kernel[(rows * count * math.ceil(channels / LANES),)](
            *(argument for tensor in (maps, *slotted) for argument in strided(tensor)),
            *places,
            bounds,
            firsts,
            owners,
            marks,
            sequences.count,
            length,
            channels,
            count,
            chunk,
            MODE=mode,
            HAS_START=initial is not None,
            START_OF_CHUNK=starts is not None,
            COSTATE=kinds["COSTATE"],
            MAP_GRAD=states is not None,
            CHECK=starts is not None,
            ONLY_MARKED=only_marked,
            REVERSE=kinds["REVERSE"],
            PACKED=sequences.offsets is not None,
            **carried(kinds["dtype"]),
            SLOTS=slots,
            PADDED=1 << (slots - 1).bit_length(),
            BLOCK=LANES,
            STAGES=STAGES,
            num_warps=1,
            enable_fp_fusion=True,
        )
