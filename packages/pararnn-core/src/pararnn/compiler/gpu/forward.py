"""Launches of the forward kernels.

What a launch needs is worked out once for each program, launch, and layout of the tensors; a call then looks it up and passes addresses. Nothing
waits for the device. Oracle: `pararnn.compiler.reference`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pararnn.compiler.engine import Tolerance
from pararnn.compiler.gpu.calls import Kernel as Kernel
from pararnn.compiler.gpu.forward_prepared import Prepared as Prepared
from pararnn.compiler.gpu.forward_source import boundary, module, source
from pararnn.compiler.gpu.launches import CHECKED, MEETING, Launch, ahead_of, power_of_two
from pararnn.compiler.program import Kind, Program

REMEMBERED = 512
# Numbers of a tile of the kernel that corrects entries, and its channels, which are those of a repair too.
BOUNDARY_TILE, BOUNDARY_STATE = 4096, 2
REPAIR_COUNT, REPAIR_INTERVAL = 128, 32


_prepared: dict[tuple[Any, ...], Prepared] = {}


def solve(
    program: Program, operands: Sequence[Tensor], initial: Tensor, *, length: int, offsets: Tensor | None, launch: Launch, tolerance: Tolerance
) -> tuple[Tensor, Tensor]:
    """States and record: see `pararnn.compiler.engine.Engine.solve`; `launch` and `tolerance` are told by their address."""
    work, tensors, addresses = arrange(program, operands, initial, length=length, packed=offsets is not None, launch=launch, tolerance=tolerance)
    return run(work, addresses, offsets, initial.device, tensors)


def arrange(
    program: Program, operands: Sequence[Tensor], initial: Tensor, *, length: int, packed: bool, launch: Launch, tolerance: Tolerance
) -> tuple[Prepared, list[Tensor], list[int]]:
    """What solves tensors of this layout; the initial state and the operands as it takes them, and their addresses."""
    tensors = [initial, *operands]
    addresses = [one.data_ptr() for one in tensors]
    layout = [(one.dtype, one.stride(), address & 15) for one, address in zip(tensors, addresses, strict=True)]
    key = (id(program), id(launch), id(tolerance), length, packed, initial.shape, initial.get_device(), *layout)
    work = _prepared.get(key)
    if work is None:
        copies = _copies((Kind.ELEMENT, *program.kinds), tensors)
        densify(tensors, addresses, copies)
        work = _remember(key, _prepare(program, tensors, copies, length, packed, launch, tolerance))
    elif work.copies:
        densify(tensors, addresses, work.copies)
    return work, tensors, addresses


def run(
    work: Prepared, addresses: Sequence[int], offsets: Tensor | None, device: torch.device, tensors: Sequence[Tensor] = ()
) -> tuple[Tensor, Tensor]:
    """States and record by `work` of what lies at `addresses`, the initial state first; `tensors` are asked for until `work.is_ready`."""
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            return run(work, addresses, offsets, device, tensors)
    # Quicker than `empty`, which small solves feel.
    spaces = {name: torch.empty_strided(shape, strides, dtype=dtype, device=device) for name, shape, strides, dtype in work.spaces}
    _launch(work, spaces, tensors, addresses, offsets)
    return spaces["states"], spaces["record"]


def step(program: Program, state: Tensor, operands: Sequence[Tensor], out: Tensor) -> None:
    """One step: see `pararnn.compiler.engine.Engine.step`."""
    work, tensors, addresses = arrange_step(program, state, operands, out)
    target = out if out.is_contiguous() else torch.empty_like(out, memory_format=torch.contiguous_format)
    run_step(work, addresses, target, tensors)
    if target is not out:
        out.copy_(target)


def arrange_step(program: Program, state: Tensor, operands: Sequence[Tensor], out: Tensor) -> tuple[Prepared, list[Tensor], list[int]]:
    """As `arrange`, for one step into `out`."""
    # A step is a sequence of one: the rows of the kernel are those of the batch.
    tensors = [state, *(one.unsqueeze(1) if kind.is_timed else one for kind, one in zip(program.kinds, operands, strict=True))]
    addresses = [one.data_ptr() for one in tensors]
    layout = [(one.dtype, one.stride(), address & 15) for one, address in zip(tensors, addresses, strict=True)]
    aligned = out.data_ptr() & 15 if out.is_contiguous() else 0
    key = (id(program), state.shape, state.get_device(), out.dtype, aligned, *layout)
    work = _prepared.get(key)
    if work is None:
        copies = _copies((Kind.ELEMENT, *program.kinds), tensors)
        densify(tensors, addresses, copies)
        work = _remember(key, _prepare_step(program, tensors, copies))
    elif work.copies:
        densify(tensors, addresses, work.copies)
    return work, tensors, addresses


def run_step(work: Prepared, addresses: Sequence[int], target: Tensor, tensors: Sequence[Tensor] = ()) -> None:
    """Write the next state to `target`, which is contiguous; as `run`."""
    device = target.device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            run_step(work, addresses, target, tensors)
        return
    _launch(work, {"states": target, "record": target}, tensors, addresses, None)


def _launch(work: Prepared, spaces: dict[str, Tensor], tensors: Sequence[Tensor], addresses: Sequence[int], offsets: Tensor | None) -> None:
    memory = work.arguments.copy()
    bounds = spaces["states"] if offsets is None else offsets
    if work.is_ready:
        held: dict[str, Any] = {name: space.data_ptr() for name, space in spaces.items()}
        memory[0], memory[3], memory[4] = held["states"], held["record"], bounds.data_ptr()
        for place, address in zip(work.places, addresses, strict=True):
            memory[place] = address
    else:
        held = spaces
        memory[0], memory[3], memory[4] = held["states"], held["record"], bounds
        for place, tensor in zip(work.places, tensors, strict=True):
            memory[place] = tensor
    for kernel, names in work.launches:
        if not names:
            kernel(memory)
            continue
        after = [held[name] for name in names]
        # The kernel between sweeps sees no operand.
        kernel(after if names[0] == "between" else [*memory, *after])
    if not work.is_ready:
        work.is_ready = all(kernel.launch is not None for kernel, _ in work.launches)


def _prepare(program: Program, tensors: list[Tensor], copies: list[int], length: int, packed: bool, launch: Launch, tolerance: Tolerance) -> Prepared:
    initial, *operands = tensors
    sequences, state = initial.shape
    carry = torch.float64 if initial.dtype == torch.float64 else torch.float32
    keeps = initial.dtype == carry
    # States of less precision than the carry cannot be compared.
    checked = max(launch.ahead, ahead_of(launch.interval, CHECKED)) if keeps and launch.interval >= MEETING else 0
    kernels = module(source(program, launch.variant, launch.ahead, keeps=keeps, checked=checked))
    constants = _constants(program, operands, state, initial.dtype, launch.block_state, packed=packed)
    blocks = -(-state // launch.block_state)
    limits = (tolerance.absolute, tolerance.relative)
    options = _options(launch.warps)
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"states": ((1 if packed else sequences, length, state), initial.dtype)}
    launches: list[tuple[Kernel, tuple[str, ...]]]
    if launch.variant == "walk":
        launches = [(Kernel(kernels.walk, (sequences * blocks, 1, 1), (length, *constants), options), ())]
    elif launch.variant == "shoot":
        numbers = (length, launch.interval, *limits, tolerance.sweeps, *constants, launch.count, False)
        launches = [(Kernel(kernels.shoot, (sequences * blocks, 1, 1), numbers, options), ("states",))]
    else:
        intervals = -(-length // launch.interval)
        parts = -(-intervals // launch.count)
        entries = parts * launch.count
        block = min(BOUNDARY_STATE, power_of_two(state))
        tile = min(power_of_two(intervals), BOUNDARY_TILE // block)
        sweeping = {
            name: Kernel(
                getattr(kernels, name),
                (sequences * blocks * parts, 1, 1),
                (length, parts, launch.interval, *limits, *constants, launch.count),
                options,
            )
            for name in ("open_sweep", "sweep", "write")
        }
        blocks = -(-state // block)
        correcting = {}
        for name, first, judge in (("first", True, False), ("later", False, False), ("judge", False, True)):
            numbers = (length, launch.interval, entries, *limits, first, judge, state, _carry(initial.dtype), tile, block)
            correcting[name] = Kernel(boundary().boundary, (sequences * blocks, 1, 1), numbers, _options(max(1, min(16, tile * block // 256))))
        repairing = _constants(program, operands, state, initial.dtype, block, packed=packed)
        numbers = (length, REPAIR_INTERVAL, *limits, tolerance.sweeps, *repairing, REPAIR_COUNT, True)
        repair = Kernel(kernels.shoot, (sequences * blocks, 1, 1), numbers, _options(max(1, REPAIR_COUNT * block // 128)))
        shapes |= {"between": ((5 * sequences * entries * state,), carry), "flags": ((sequences, state), torch.int32)}
        swept, corrected = ("flags", "between"), ("between", "flags", "record")
        launches = [(sweeping["open_sweep"], swept), (correcting["first"], corrected)]
        launches += [(sweeping["sweep"], swept), (correcting["later"], corrected)] * (min(launch.sweeps, tolerance.sweeps) - 1)
        launches += [(sweeping["write"], swept), (correcting["judge"], corrected), (repair, ("flags",))]
    shapes["record"] = ((sequences, blocks, 3), torch.float32)
    return _with_arguments(program, tensors, copies, (program, launch, tolerance), launches, shapes)


def _prepare_step(program: Program, tensors: list[Tensor], copies: list[int]) -> Prepared:
    state, *operands = tensors
    rows, size = state.shape
    block = min(128, power_of_two(size))
    numbers = (1, *_constants(program, operands, size, state.dtype, block, packed=False))
    kernel = Kernel(module(source(program, "step", 1, keeps=False)).one_step, (rows * -(-size // block), 1, 1), numbers, _options(1))
    return _with_arguments(program, tensors, copies, (program,), [(kernel, ())], {})


def _with_arguments(
    program: Program,
    tensors: list[Tensor],
    copies: list[int],
    kept: tuple[Any, ...],
    launches: list[tuple[Kernel, tuple[str, ...]]],
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]],
) -> Prepared:
    arguments: list[Any] = [None, None, tensors[0].stride(0), None, None]
    places = [1]
    for kind, operand in zip(program.kinds, tensors[1:], strict=True):
        places.append(len(arguments))
        arguments += [None, operand.stride(0)] if kind.is_timed else [None]
    return Prepared(kept, launches, shapes, arguments, places, copies)


def _constants(program: Program, operands: Sequence[Tensor], state: int, dtype: torch.dtype, block: int, *, packed: bool) -> tuple[Any, ...]:
    """The constants of the kernels over a sequence, in their order."""
    times = (operand.stride(1) for kind, operand in zip(program.kinds, operands, strict=True) if kind.is_timed)
    return (state, *times, packed, _carry(dtype), block)


def _options(warps: int) -> dict[str, Any]:
    # Products and sums are fused where the source says so, and nowhere else, so that all kernels round a step alike.
    return {"num_warps": warps, "num_stages": 1, "enable_fp_fusion": False}


def _carry(dtype: torch.dtype) -> Any:
    import triton.language as tl

    return tl.float64 if dtype == torch.float64 else tl.float32


def _copies(kinds: Sequence[Kind], tensors: Sequence[Tensor]) -> list[int]:
    """Which tensors have no channels next to each other."""
    return [
        index
        for index, (kind, one) in enumerate(zip(kinds, tensors, strict=True))
        if (kind is Kind.ELEMENT and one.stride(-1) != 1 and one.shape[-1] != 1) or (not kind.is_timed and not one.is_contiguous())
    ]


def densify(tensors: list[Tensor], addresses: list[int], copies: Sequence[int]) -> None:
    """Put copies of `copies` in their places, with channels next to each other."""
    for index in copies:
        tensors[index] = tensors[index].contiguous()
        addresses[index] = tensors[index].data_ptr()


def _remember(key: tuple[Any, ...], work: Prepared) -> Prepared:
    if len(_prepared) >= REMEMBERED:
        _prepared.clear()
    _prepared[key] = work
    return work
