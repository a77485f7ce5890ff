"""The diagonal scan on a GPU, and its backward, each in one pass over memory; written in Triton.

Tensors are read as they lie, by their strides; complex ones as pairs of real numbers. Half precision is carried in single precision. The kernels
are `triton_stream`, `triton_walk`, `triton_chain` and `triton_tiles` in `kernels`, and `launches` chooses between them. Oracle:
`pararnn.scans.reference`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pararnn.scans.launches import LANES, Launch, launch_for, walking
from pararnn.scans.layout import empty_along, lies_along
from pararnn.scans.segments import Offsets
from pararnn.scans.triton_along import launch_along
from pararnn.scans.triton_backend import interpreted
from pararnn.scans.triton_memory import Sequences, as_real, by_lanes, carried, doubted, offset_type, processors, strided, words
from pararnn.structures.base import Structure


class DiagonalScan:
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
        launch: Launch | None = None,
    ) -> Tensor:
        """`h[t] = a[t] h[t-1] + b[t]` for `bias` `(rows, time, state)`; see `pararnn.scans.chunked.scan`. `launch` overrides the choice of kernel."""
        (maps,) = transition.leaves()
        if _is_along(launch, offsets, maps, bias):
            states = empty_along(bias)
            if states.numel():
                launch_along(maps, bias, initial, None, states, None, reverse=reverse, costate=False, launch=launch)
            return states
        states = torch.empty_like(bias, memory_format=torch.contiguous_format)
        if states.numel():
            _launch(maps, bias, initial, None, states, None, offsets, reverse=reverse, costate=False, launch=launch)
        return states

    def costates(
        self,
        transition: Structure,
        grad: Tensor,
        *,
        states: Tensor | None = None,
        initial: Tensor | None = None,
        offsets: Offsets | None = None,
        reverse: bool = False,
        launch: Launch | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """The gradient of each term from the gradient `grad` of the states, `lam[t] = g[t] + conj(a[t+1]) lam[t+1]`; not differentiable.

        With `states`, which the scan gave for the same arguments, also the gradients of the maps, from the same pass.
        """
        (maps,) = transition.leaves()
        if _is_along(launch, offsets, maps, grad if states is None else states):
            # Of three tensors the one that may lie otherwise is copied.
            terms = grad if grad.stride(1) in (0, 1) else empty_along(grad).copy_(grad)
            costate = empty_along(grad)
            map_grad = None if states is None else empty_along(grad)
            if costate.numel():
                start = None if states is None else initial
                launch_along(maps, terms, start, states, costate, map_grad, reverse=not reverse, costate=True, launch=launch)
            return costate, None if map_grad is None else (map_grad,)
        costate = torch.empty_like(grad, memory_format=torch.contiguous_format)
        map_grad = None if states is None else torch.empty_like(costate)
        if costate.numel():
            start = None if states is None else initial
            _launch(maps, grad, start, states, costate, map_grad, offsets, reverse=not reverse, costate=True, launch=launch)
        return costate, None if map_grad is None else (map_grad,)


scan = DiagonalScan()


def _is_along(launch: Launch | None, offsets: Offsets | None, *tensors: Tensor) -> bool:
    """Whether the kernels are those for steps next to each other in memory: of whole sequences of real numbers."""
    others = offsets is not None or tensors[0].is_complex() or (launch is not None and launch.variant not in ("lines", "linked"))
    return not others and lies_along(*tensors)


def _launch(
    maps: Tensor,
    terms: Tensor,
    initial: Tensor | None,
    states: Tensor | None,
    out: Tensor,
    map_grad: Tensor | None,
    offsets: Offsets | None,
    *,
    reverse: bool,
    costate: bool,
    launch: Launch | None,
) -> None:
    """Fill `out`, and `map_grad` where the walk is that of costates."""
    from pararnn.scans.kernels.triton_chain import chain_kernel
    from pararnn.scans.kernels.triton_stream import stream_kernel
    from pararnn.scans.kernels.triton_tiles import tile_kernel
    from pararnn.scans.kernels.triton_walk import walk_kernel

    rows, length, size = terms.shape
    sequences = Sequences.of(offsets, length)
    itemsize = terms.element_size()
    if launch is None:
        launch = launch_for(
            rows * sequences.count,
            sequences.longest,
            rows * length,
            size,
            itemsize=itemsize,
            processors=processors(terms.device),
            costate=costate,
            is_complex=out.is_complex(),
        )
    if launch.variant in ("stream", "chain"):
        maps, terms, states = by_lanes(maps), by_lanes(terms), None if states is None else by_lanes(states)
    blocks = math.ceil(size / launch.block_state)
    result = as_real(out)
    # Only of the maps the kernels take conjugates themselves.
    others = (terms, *(out if tensor is None else tensor for tensor in (initial, states)))
    inputs = strided(maps) + tuple(argument for tensor in others for argument in strided(tensor.resolve_conj()))
    gradient = result if map_grad is None else as_real(map_grad)
    memory = (*inputs, result, result.stride(0), result.stride(1), gradient)
    # Along time and lanes: rows are found in 64 bits.
    strides = [stride for tensor in (maps, out, *others) for stride in tensor.stride()[1:]]
    kinds: dict[str, Any] = {
        "HAS_START": initial is not None,
        "COSTATE": costate,
        "MAP_GRAD": map_grad is not None,
        "REVERSE": reverse,
        "PACKED": offsets is not None,
        "CARRY": carried(out.dtype)["CARRY"],
        "OFFSET": offset_type(strides, launch.block_time + launch.block_state),
        "BLOCK_TIME": launch.block_time,
        "BLOCK_STATE": launch.block_state,
        "num_warps": launch.warps,
        "enable_fp_fusion": True,
    }
    programs = blocks * rows * sequences.count
    counts = (rows, sequences.count, length, size)
    if launch.variant == "stream":
        (bounds,) = sequences.tensors(stand_in=result)
        with torch.cuda.device_of(out):
            stream_kernel[(programs,)](*memory, bounds, *counts, **kinds, **doubted(out.dtype), GROUPS=launch.groups, STAGES=launch.stages)
        return
    walk = launch if launch.variant == "walk" else walking(itemsize=itemsize)
    walked = kinds | {
        "CONJ": maps.is_conj() != costate,
        "COMPLEX": out.is_complex(),
        "BLOCK_TIME": walk.block_time,
        "OFFSET": offset_type(strides, walk.block_time + walk.block_state),
        "num_warps": 1,
    }
    with torch.cuda.device_of(out):
        if launch.variant == "walk":
            (bounds,) = sequences.tensors(stand_in=result)
            walk_kernel[(programs,)](*memory, bounds, result, *counts, **walked, ONLY_MARKED=False)
            return
        tiles, *parts = sequences.parts(launch.block_time)
        bounds, firsts, owners = sequences.tensors(*parts, stand_in=result)
        links = tiles // launch.group + 1
        if launch.variant == "chain":
            published = 2 * tiles + 3 * links
        else:
            published = (2 if out.is_complex() else 1) * (2 * (tiles + links) + tiles // launch.group**2 + 1)
        word, bits = words(out.dtype)
        # Empty memory is minus one everywhere; so is the mark of a sequence that is right.
        counted = (programs, blocks * rows * launch.block_state * published)
        marks, empty = torch.full((sum(counted),), -1, dtype=word, device=out.device).split(counted)
        shared = (*memory, bounds, marks, firsts, owners, empty, *counts, tiles)
        kinds |= bits | {"ALLOWED": carried(out.dtype)["ALLOWED"]} | ({} if launch.registers is None else {"maxnreg": launch.registers})
        if launch.variant == "chain":
            chained = kinds | doubted(out.dtype) | {"GROUPS": launch.groups, "LINK": launch.group, "SPIN": waited_at_once(launch)}
            chain_kernel[(blocks * rows * tiles,)](*shared, **chained)
        else:
            tile_kernel[(blocks * rows * tiles,)](*shared, **kinds, CONJ=walked["CONJ"], COMPLEX=walked["COMPLEX"], GROUP=launch.group)
        walk_kernel[(programs,)](*memory, bounds, marks, *counts, **walked, ONLY_MARKED=True)


def waited_at_once(launch: Launch) -> int:
    """How many words a thread of the chain waits for at once, of those that it reads of a link; none in the interpreter, where they are there."""
    return 0 if interpreted() else min(4, launch.group * launch.block_state // (LANES * launch.warps))
