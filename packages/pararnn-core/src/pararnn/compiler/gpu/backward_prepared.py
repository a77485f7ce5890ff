"""What a backward pass launches, worked out once for each program, choice of gradients, cut, and layout of the tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pararnn.compiler.gpu.backward_planning import Cut, power_of_two
from pararnn.compiler.gpu.backward_source import module, source
from pararnn.compiler.gpu.backward_subject import Subject
from pararnn.compiler.gpu.forward import Kernel
from pararnn.compiler.program import Kind, Program

# Intervals of a tile of the boundary kernel, and its numbers.
BOUNDARY, BOUNDARY_TILE = 1024, 4096
# How far a costate may be from what the interval before it says, in relative terms, and what is as good as zero; below what a product has lost
# digits, and the growth from which on that may show.
TRUST = {torch.float32: (2.0**-8, 2.0**-122, 2.0**-100, 2.0**30), torch.float64: (2.0**-20, 2.0**-1018, 2.0**-960, 2.0**200)}


# An operand and its bound: its gradient is zero where it lies beyond and a descent step would lead further away.
Limit: TypeAlias = tuple[int, float]

# What comes before the operands in the memory of a kernel.
LEADING = 3


@dataclass
class Summing:
    """A sum of parts: the kernel, the operands whose gradients are its rows, which of these is limited, their size and dtype."""

    kernel: Kernel
    operands: tuple[int, ...]
    limited: int | None
    size: int
    dtype: torch.dtype


@dataclass
class Prepared:
    """Kernels in the order of their launches; `program` is kept alive because it is told by its address.

    Attributes:
        before: compose the intervals and find what enters them; empty where programs need not know of each other.
        main: writes the gradients of `ELEMENT` operands and of the initial state, and parts of the others.
        sums: what is added up after it; `direct` says that the parts of `CHANNEL` and `SCALAR` operands are the sums.
        work: numbers that kernels leave for each other.
    """

    program: Program
    subject: Subject
    carry: torch.dtype
    before: list[tuple[Kernel, bool]]
    main: Kernel
    sums: list[Summing]
    direct: bool
    work: int

    @property
    def is_ready(self) -> bool:
        """Whether addresses will do for tensors: kernels were compiled."""
        return self.main.launch is not None

    def run(self, device: torch.device, memory: Sequence[Any], offsets: Any) -> list[Tensor]:
        """Launch on `device`, and give the sums `(operands, size)` over time and rows, one tensor for each of `sums`.

        `memory` has states, initial state, gradient, operands, gradients of `ELEMENT` operands and of the initial state: tensors, or addresses once
        this is ready, with any of them in the place of what is not there. So has `offsets`, None without packing.
        """
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self.run(device, memory, offsets)
        # Quicker than `empty`, which small solves feel.
        between = torch.empty_strided((self.work,), (1,), dtype=self.carry, device=device) if self.work else None
        totals = [torch.empty_strided((len(one.operands), one.size), (one.size, 1), dtype=one.dtype, device=device) for one in self.sums]
        anything, is_ready = memory[0], self.is_ready
        shared: Any = anything if between is None else between.data_ptr() if is_ready else between
        sums: Any = shared
        if self.direct:
            sums = totals[0].data_ptr() if is_ready else totals[0]
        everything = (*memory, sums, anything if offsets is None else offsets, shared)
        for kernel, bounding in self.before:
            kernel((shared,) if bounding else everything)
        self.main(everything)
        for one, total in zip(self.sums[1:] if self.direct else self.sums, totals[1:] if self.direct else totals, strict=True):
            limited = shared if one.limited is None else memory[LEADING + one.limited]
            one.kernel((shared, total if one.kernel.launch is None else total.data_ptr(), limited))
        return totals


def prepare(
    program: Program,
    cut: Cut,
    needs: tuple[bool, ...],
    grad: Tensor,
    states: Tensor,
    operands: Sequence[Tensor],
    initial: Tensor,
    results: Sequence[Tensor | None],
    *,
    packed: bool,
    aliased: bool,
    limit: Limit | None = None,
) -> Prepared:
    """The kernels for these tensors, whose channels lie next to each other; `results` are the gradients of `ELEMENT` operands."""
    import triton.language as tl

    from pararnn.compiler.gpu.kernels.triton_boundary import boundary_kernel

    subject = Subject(program, needs[:-1])
    kernels = module(source(program, needs, cut))
    rows, length, state = states.shape
    sequences = initial.shape[0]
    carry = torch.float64 if states.dtype == torch.float64 else torch.float32
    agree, smallest, tiny, growth = TRUST[carry]
    blocks = -(-state // cut.block_state)
    parts = cut.intervals if cut.variant == "across" else 1
    written = [result for index in subject.rows if (result := results[index]) is not None]
    read = [operands[index] for index in subject.timed]
    # Where numbers lie in the memory that kernels leave for each other.
    between = sequences * parts * state if cut.variant == "across" else 0
    doubts = 2 * between
    sums = doubts + (sequences * state if between else 0)
    columns = sums + len(subject.sums) * sequences * parts * state
    column = blocks * rows * length
    places = (*(columns + slot * column for slot in range(len(subject.steps))), sums, between, doubts)
    # Kernels that write sums at once know nothing of limits.
    direct = sequences * parts == 1 and limit is None and bool(subject.sums)
    numbers: tuple[Any, ...] = (
        *(tensor.stride(0) for tensor in (states, initial, grad, *read, *written)),
        *places[: len(subject.steps)],
        *((0 if direct else sums), between, doubts),
        *(rows, length, state, parts),
        *(states.stride(1), grad.stride(1), grad.stride(2)),
        *(tensor.stride(1) for tensor in (*read, *written)),
        *(packed, tl.float64 if carry == torch.float64 else tl.float32, cut.block_state),
    )
    grid = (blocks * parts * sequences, 1, 1)
    options = {"num_warps": cut.warps, "num_stages": 1, "enable_fp_fusion": True}
    before = []
    if cut.variant == "across":
        before.append((Kernel(kernels.compose_kernel, grid, (*numbers, tiny, growth), options), False))
    if cut.variant == "across" and not cut.folds:
        block = min(4, power_of_two(state))
        intervals = min(BOUNDARY, BOUNDARY_TILE // block, power_of_two(parts))
        warps = {"num_warps": max(1, min(16, intervals * block // 256)), "num_stages": 1, "enable_fp_fusion": True}
        bounding = (between, doubts, parts, state, agree, smallest, intervals, block)
        before.append((Kernel(boundary_kernel, (sequences * -(-state // block), 1, 1), bounding, warps), True))
    if cut.variant == "tile":
        main = Kernel(kernels.tile_kernel, grid, (*numbers, cut.intervals, agree, smallest, aliased), options)
    else:
        main = Kernel(kernels.walk_kernel, grid, numbers, options)
    adding = []
    if subject.sums:
        dtypes = {operands[index].dtype for index in subject.sums}
        dtype = dtypes.pop() if len(dtypes) == 1 and not _scalars(subject) else carry
        adding.append(_summing(subject.sums, sums, sequences * parts, state, dtype, limit))
    for slot, index in enumerate(subject.steps):
        adding.append(_summing((index,), columns + slot * column, blocks, rows * length, operands[index].dtype))
    return Prepared(program, subject, carry, before, main, adding, direct, columns + len(subject.steps) * column)


def _scalars(subject: Subject) -> bool:
    """Whether a sum still has to be added up over the channels."""
    return any(subject.program.kinds[index] is Kind.SCALAR for index in subject.sums)


def _summing(operands: tuple[int, ...], place: int, parts: int, size: int, dtype: torch.dtype, limit: Limit | None = None) -> Summing:
    from pararnn.compiler.gpu.kernels.triton_sums import UNLIMITED, blocks_of, sum_kernel

    block_parts, block_size, warps = blocks_of(parts)
    grid = (len(operands) * -(-size // block_size), 1, 1)
    limited, bound = (None, 0.0) if limit is None or limit[0] not in operands else limit
    row = UNLIMITED if limited is None else operands.index(limited)
    numbers = (place, parts, size, row, bound, block_parts, block_size)
    return Summing(Kernel(sum_kernel, grid, numbers, {"num_warps": warps, "num_stages": 1, "enable_fp_fusion": True}), operands, limited, size, dtype)
