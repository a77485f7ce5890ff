"""The engine of the CPU: C libraries made from programs, called on the memory of tensors."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from pararnn.compiler.engine import Tolerance, Workload
from pararnn.compiler.native import planning, toolchain
from pararnn.compiler.native.calls import CARRIES, address, carried, in_dtype, of_elements, of_rows, packed, places
from pararnn.compiler.native.gradients import Gradients
from pararnn.compiler.native.layout import BACKWARD, shooting, walking
from pararnn.compiler.native.memory import room
from pararnn.compiler.native.source import backward_source, expanded, forward_source
from pararnn.compiler.native.threads import in_shares
from pararnn.compiler.program import Program
from pararnn.errors import ParaRNNError
from pararnn.selection import Request
from pararnn.solver.planner import Plan

REMEMBERED = 1024
# What C writes, whatever defaults the caller has set.
RECORD: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
DTYPES = tuple(str(dtype).removeprefix("torch.") for dtype in CARRIES)


class NativeEngine:
    """Steps as C, compiled when first needed; one library for the forward pass, one for each set of gradients that is asked for."""

    name, device, language = "native", "cpu", "c"

    def __init__(self) -> None:
        self._loaded: dict[int, tuple[Program, dict[Any, Any]]] = {}

    def reasons(self, request: Request) -> tuple[str, ...]:
        """Obstacles: another device or dtype, no compiler."""
        found = []
        if request.device != "cpu":
            found.append(f"it runs on the CPU, the tensors are on {request.device}")
        if request.dtype not in DTYPES:
            found.append(f"it works in {', '.join(DTYPES)}, the tensors are {request.dtype}")
        return (*found, *toolchain.reasons())

    def plan(self, program: Program, work: Workload, interval: int | Literal["auto", "parallel"]) -> Plan:
        return planning.plan(program, work, interval)

    def solve(
        self, program: Program, operands: Sequence[Tensor], initial: Tensor, *, offsets: Tensor | None, plan: Plan, tolerance: Tolerance
    ) -> tuple[Tensor, Tensor]:
        dtype = CARRIES[initial.dtype]
        values, start = _operands(program, operands, dtype), carried(initial, dtype)
        rows, length = _rows_and_length(program, values)
        sequences, state = initial.shape
        states = room((rows, length, state), dtype)
        if not states.numel():
            return in_dtype(states, initial.dtype), torch.zeros(sequences, 1, 3, **RECORD)
        if plan.walks:
            layout = walking(sequences, state, plan.length, dtype.itemsize)
        else:
            layout = shooting(state, plan.length, plan.interval, dtype.itemsize)
        blocks = -(-state // layout.block)
        record = torch.zeros(sequences, blocks, 3, **RECORD)
        call = packed(
            (sequences, length, state, address(offsets), layout.block, layout.together, layout.capacity),
            (plan.interval if layout.window else 0, layout.window, tolerance.sweeps),
            of_rows(start),
            of_elements(states),
            (address(record),),
            *places(program, values),
        )
        run = functools.partial(self._forward(program, dtype), call, tolerance.absolute, tolerance.relative)
        _check(in_shares(run, tasks=-(-sequences // layout.together) * blocks, numbers=states.numel()))
        return in_dtype(states, initial.dtype), record

    def backward(
        self,
        program: Program,
        grad: Tensor,
        states: Tensor,
        operands: Sequence[Tensor],
        initial: Tensor,
        *,
        offsets: Tensor | None,
        plan: Plan,
        needs: Sequence[bool],
        into: Sequence[Tensor | None] | None = None,
    ) -> list[Tensor | None]:
        dtype = CARRIES[initial.dtype]
        values, start, wanted = _operands(program, operands, dtype), carried(initial, dtype), tuple(needs[:-1])
        sequences, state = initial.shape
        if not states.numel():
            first = torch.zeros(sequences, state, dtype=dtype, device="cpu")
            found = [torch.zeros_like(operand) if need else None for operand, need in zip(operands, wanted, strict=True)]
            return [*found, in_dtype(first, initial.dtype) if needs[-1] else None]
        states, grad, first = carried(states, dtype), carried(grad, dtype), torch.empty(sequences, state, dtype=dtype, device="cpu")
        layout = walking(sequences, state, plan.length, dtype.itemsize, BACKWARD)
        gradients = Gradients(program, values, states.shape, sequences, layout, wanted, into)
        call = packed(
            (sequences, states.shape[1], state, address(offsets), layout.block, layout.together, layout.capacity),
            of_rows(start),
            of_elements(states),
            of_elements(grad),
            of_rows(first),
            *places(program, values),
            *gradients.places(),
        )
        library = self._backward(program, dtype, wanted)
        tasks = -(-sequences // layout.together) * -(-state // layout.block)
        _check(in_shares(functools.partial(library.backward, call), tasks=tasks, numbers=states.numel()))
        return [*gradients.collect(operands, library.add_rows), in_dtype(first, initial.dtype) if needs[-1] else None]

    def step(self, program: Program, state: Tensor, operands: Sequence[Tensor], out: Tensor) -> None:
        dtype = CARRIES[state.dtype]
        timed = [operand.unsqueeze(1) if kind.is_timed else operand for kind, operand in zip(program.kinds, operands, strict=True)]
        values, start = _operands(program, timed, dtype), carried(state, dtype)
        rows, size = state.shape
        if not out.numel():
            return
        target = out if out.dtype is dtype else torch.empty_like(out, dtype=dtype)
        layout = walking(rows, size, 1, dtype.itemsize)
        call = packed(
            (rows, 1, size, 0, layout.block, layout.together, layout.capacity, 0, 0, 0),
            of_rows(start),
            of_rows(target),
            (0,),
            *places(program, values),
        )
        run = functools.partial(self._forward(program, dtype), call, 0.0, 0.0)
        _check(in_shares(run, tasks=-(-rows // layout.together) * -(-size // layout.block), numbers=out.numel()))
        if target is not out:
            out.copy_(target)

    def source(self, program: Program) -> str:
        return forward_source(program, torch.float32) + "\n" + backward_source(program, torch.float32, (True,) * len(program.kinds))

    def _forward(self, program: Program, dtype: torch.dtype) -> Callable[..., int]:
        loaded = self._libraries(program)
        if dtype not in loaded:
            function = toolchain.library(expanded(forward_source(program, dtype))).solve
            function.argtypes = ctypes.c_void_p, ctypes.c_double, ctypes.c_double, ctypes.c_long, ctypes.c_long
            function.restype = ctypes.c_int
            loaded[dtype] = function
        found: Callable[..., int] = loaded[dtype]
        return found

    def _backward(self, program: Program, dtype: torch.dtype, needs: tuple[bool, ...]) -> ctypes.CDLL:
        loaded = self._libraries(program)
        if (dtype, needs) not in loaded:
            library = toolchain.library(expanded(backward_source(program, dtype, needs)))
            library.backward.argtypes = ctypes.c_void_p, ctypes.c_long, ctypes.c_long
            library.backward.restype = ctypes.c_int
            library.add_rows.argtypes = ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p
            library.add_rows.restype = None
            loaded[dtype, needs] = library
        found: ctypes.CDLL = loaded[dtype, needs]
        return found

    def _libraries(self, program: Program) -> dict[Any, Any]:
        # By address, because to hash a program takes longer than a small solve; the entry keeps the program alive.
        found = self._loaded.get(id(program))
        if found is None:
            if len(self._loaded) >= REMEMBERED:
                self._loaded.clear()
            found = self._loaded[id(program)] = program, {}
        return found[1]


def _operands(program: Program, operands: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    values = [carried(operand, dtype) for operand in operands]
    return [value if kind.is_timed else value.reshape(-1) for kind, value in zip(program.kinds, values, strict=True)]


def _rows_and_length(program: Program, operands: Sequence[Tensor]) -> tuple[int, int]:
    leaf = next(operand for kind, operand in zip(program.kinds, operands, strict=True) if kind.is_timed)
    return leaf.shape[0], leaf.shape[1]


def _check(fine: bool) -> None:
    if not fine:
        raise ParaRNNError("there is not enough memory for the tiles of a compiled step, some kilobytes a thread; free some")
