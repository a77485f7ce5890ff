"""The diagonal scan on a GPU, and its backward, each in one pass over memory; written in Triton.

Tensors are read as they lie, by their strides; complex ones as pairs of real numbers. Half precision is carried in single precision. The kernels
are `triton_walk`, `triton_lookback` and `triton_chunks` in `kernels`, and `launches` chooses between them. Triton is imported when the first scan
is launched. Oracle: `pararnn.scans.reference`.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pararnn.scans.launches import Launch, launch_for
from pararnn.scans.segments import Offsets
from pararnn.selection import Request
from pararnn.structures.base import Structure

DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
OLDEST_CAPABILITY = (7, 0)
# Steps are counted in 32 bits; places in memory are not.
LONGEST = (1 << 31) - (1 << 16)
# Where the interpreter stands in for a GPU.
PROCESSORS = 132


def reasons(request: Request) -> tuple[str, ...]:
    """Obstacles: no CUDA device, another dtype, more steps than are counted, or Triton is not installed."""
    found = []
    if importlib.util.find_spec("triton") is None:
        found.append("triton is not installed; pip install 'pararnn-core[triton]'")
    if request.dtype not in DTYPES:
        found.append(f"it works in {', '.join(DTYPES)}, the tensors are {request.dtype}")
    if request.size("time", 1) > LONGEST:
        found.append(f"it takes at most {LONGEST} steps, the request has {request.size('time')}")
    if request.device == "cpu" and not interpreted():
        found.append("it runs on CUDA devices, the tensors are on the CPU (TRITON_INTERPRET=1 interprets it there, slowly)")
    elif request.device not in ("cpu", "cuda"):
        found.append(f"it runs on CUDA devices, the tensors are on {request.device}")
    elif request.device == "cuda" and not torch.cuda.is_available():
        found.append("it runs on CUDA devices, and torch sees none here")
    elif request.device == "cuda" and (capability := torch.cuda.get_device_capability()) < OLDEST_CAPABILITY:
        found.append(f"it needs compute capability {OLDEST_CAPABILITY[0]}.{OLDEST_CAPABILITY[1]}, this GPU has {capability[0]}.{capability[1]}")
    return tuple(found)


def interpreted() -> bool:
    """Whether Triton runs its kernels in its interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def probe() -> tuple[str, ...] | None:
    """Scan a small sequence with each kernel."""
    from pararnn.scans.launches import in_chunks, looking_back, walking
    from pararnn.structures.diagonal import Diagonal

    device = "cuda" if torch.cuda.is_available() else "cpu"
    obstacles = reasons(Request.of("scan/diagonal", device=device))
    if obstacles:
        return obstacles
    ones = torch.ones(1, 70, 2, device=device)
    for launch in (walking(2, itemsize=4), looking_back(70, 2, itemsize=4), in_chunks(70, 2, itemsize=4)):
        scan(Diagonal(ones), ones, None, launch=launch)
    return None


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
        costate = torch.empty_like(grad, memory_format=torch.contiguous_format)
        map_grad = None if states is None else torch.empty_like(costate)
        if costate.numel():
            start = None if states is None else initial
            _launch(maps, grad, start, states, costate, map_grad, offsets, reverse=not reverse, costate=True, launch=launch)
        return costate, None if map_grad is None else (map_grad,)


scan = DiagonalScan()


@dataclass(frozen=True, kw_only=True)
class _Sequences:
    """Where sequences lie along time: their bounds on the device, None where each row is one sequence."""

    count: int
    longest: int
    bounds: Tensor | None

    @classmethod
    def of(cls, offsets: Offsets | None, length: int, device: torch.device) -> _Sequences:
        if offsets is None:
            return cls(count=1, longest=length, bounds=None)
        longest = max((end - start for start, end in itertools.pairwise(offsets)), default=0)
        return cls(count=len(offsets) - 1, longest=longest, bounds=torch.tensor(offsets, device=device))


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
    from pararnn.scans.kernels.triton_chunks import chunk_kernel
    from pararnn.scans.kernels.triton_lookback import lookback_kernel
    from pararnn.scans.kernels.triton_mend import mend_kernel
    from pararnn.scans.kernels.triton_walk import walk_kernel

    rows, length, size = terms.shape
    sequences = _Sequences.of(offsets, length, terms.device)
    if launch is None:
        launch = launch_for(
            rows * sequences.count,
            sequences.longest,
            rows * length,
            size,
            itemsize=max(4, terms.element_size()),
            processors=_processors(terms.device),
        )
    blocks = math.ceil(size / launch.block_state)
    terms = terms.resolve_conj()
    inputs = (
        *_strided(maps),
        *_strided(terms),
        *_strided(None if initial is None else initial.resolve_conj(), terms),
        *_strided(None if states is None else states.resolve_conj(), terms),
    )
    result = torch.view_as_real(out) if out.is_complex() else out
    gradient = result if map_grad is None else torch.view_as_real(map_grad) if map_grad.is_complex() else map_grad
    bounds = result if sequences.bounds is None else sequences.bounds
    memory = (*inputs, result, result.stride(0), result.stride(1), gradient, bounds)
    carry = torch.float64 if terms.dtype in (torch.float64, torch.complex128) else torch.float32
    kinds: dict[str, Any] = {
        "HAS_START": initial is not None,
        "COSTATE": costate,
        "MAP_GRAD": map_grad is not None,
        "REVERSE": reverse,
        "PACKED": offsets is not None,
        "CONJ": maps.is_conj() != costate,
        "COMPLEX": terms.is_complex(),
        **_constants(carry),
        "OFFSET": _offset(memory, launch),
    }
    with torch.cuda.device_of(out):
        if launch.variant == "walk":
            walk_kernel[(blocks * rows * sequences.count,)](
                *memory,
                sequences.count,
                length,
                size,
                **kinds,
                BLOCK_TIME=launch.block_time,
                BLOCK_STATE=launch.block_state,
                STAGES=launch.stages,
                num_warps=launch.warps,
            )
            return
        tiles, first_tiles, owners = _tiles(offsets, length, launch.steps, bounds)
        parts = 4 if terms.is_complex() else 2
        word = torch.int64 if carry == torch.float64 else torch.int32
        # Empty memory is minus one everywhere; so is the counter, one below the first ticket.
        words = torch.full((2 * parts * tiles * rows * size + 1,), -1, dtype=word, device=out.device)
        flags = torch.empty(rows * blocks * tiles, dtype=torch.int32, device=out.device)
        registers = {} if launch.registers is None else {"maxnreg": launch.registers}
        block = {"BLOCK_TIME": launch.block_time, "BLOCK_STATE": launch.block_state}
        if launch.variant == "chunks":
            kernel, more = chunk_kernel, {"CHUNK": launch.steps, "STAGES": launch.stages}
        else:
            kernel, more = lookback_kernel, {}
        kernel[(blocks * rows * tiles,)](
            *memory,
            first_tiles,
            owners,
            words,
            flags,
            rows,
            length,
            size,
            tiles,
            **kinds,
            **_words(carry),
            **block,
            **more,
            GROUP=launch.group,
            **registers,
            num_warps=launch.warps,
        )
        mending = {name: value for name, value in kinds.items() if name not in ("TINY", "GROWTH")}
        mend_kernel[(blocks * rows * sequences.count,)](
            *memory,
            first_tiles,
            flags,
            sequences.count,
            length,
            size,
            tiles,
            **mending,
            **(block | {"BLOCK_TIME": launch.steps}),
            BLOCK_FLAGS=1024,
            num_warps=1,
        )


def _strided(tensor: Tensor | None, stand_in: Tensor | None = None) -> tuple[Any, ...]:
    """The tensor, or what stands in where nothing is read, with its three strides; complex numbers as pairs."""
    if tensor is None:
        return (torch.view_as_real(stand_in.resolve_conj()) if stand_in is not None and stand_in.is_complex() else stand_in, 0, 0, 0)
    plain = tensor.detach().resolve_neg()
    if plain.is_complex():
        # Of the maps the kernel takes the conjugate itself, see CONJ.
        plain = torch.view_as_real(plain.conj() if plain.is_conj() else plain)
    return (plain, *plain.stride()[:3])


def _tiles(offsets: Offsets | None, length: int, block_time: int, stand_in: Tensor) -> tuple[int, Tensor, Tensor]:
    """How many tiles a row has, the first tile of each segment, and the segment of each tile."""
    if offsets is None:
        return math.ceil(length / block_time), stand_in, stand_in
    counts = [math.ceil((end - start) / block_time) for start, end in itertools.pairwise(offsets)]
    firsts = [0, *itertools.accumulate(counts)]
    owners = [segment for segment, count in enumerate(counts) for _ in range(count)]
    return firsts[-1], torch.tensor(firsts, device=stand_in.device), torch.tensor(owners, device=stand_in.device)


def _processors(device: torch.device) -> int:
    return PROCESSORS if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count


def _offset(memory: tuple[Any, ...], launch: Launch) -> Any:
    """The integers in which places within a tile are counted."""
    import triton.language as tl

    strides = [abs(value) for value in memory if isinstance(value, int)]
    return tl.int32 if max(strides) * 2 * (launch.block_time + launch.block_state) < 1 << 31 else tl.int64


def _constants(carry: torch.dtype) -> dict[str, Any]:
    """What a number is carried in, the exponent below which products lose digits, and the growth that brings them back."""
    import triton.language as tl

    if carry == torch.float64:
        return {"CARRY": tl.float64, "TINY": -960.0, "GROWTH": 200.0}
    return {"CARRY": tl.float32, "TINY": -100.0, "GROWTH": 30.0}


def _words(carry: torch.dtype) -> dict[str, Any]:
    """The integers as wide as a number, and the bits of the one value that is not a number which is published."""
    import triton.language as tl

    return {"WORD": tl.int64, "NAN": 0x7FF8 << 48} if carry == torch.float64 else {"WORD": tl.int32, "NAN": 0x7FC0 << 16}
