"""What an engine is: it turns programs into kernels, and launches them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from pararnn.compiler.program import Program
from pararnn.selection import Request
from pararnn.solver.planner import Plan


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The sizes of a solve, by which it is planned.

    Attributes:
        rows: sequences side by side in memory; one where sequences are packed.
        length: steps of a row.
        state: channels.
        sequences: sequences in all, packed ones counted one by one.
        longest: steps of the longest sequence.
        itemsize: bytes of a number of the states.
    """

    rows: int
    length: int
    state: int
    sequences: int
    longest: int
    itemsize: int


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """A sequence has converged when its update is at most `absolute + relative * |state|`; `sweeps` limits the iterations before the walk."""

    absolute: float
    relative: float
    sweeps: int


class Engine(Protocol):
    """Kernels from programs.

    Operands come in the order of `program.kinds`, of any floating dtype up to that of the carry, in any strides: `ELEMENT` `(rows, time, state)`,
    `STEP` `(rows, time, 1)`, `CHANNEL` and `SCALAR` with `state` and one elements. `initial` is `(sequences, state)`. `offsets` `(sequences + 1,)`,
    int64, contiguous, on the same device, tells where packed sequences begin, None without packing. Half precision is carried in single precision.
    """

    name: str
    # Where `"auto"` decodes with it, and what its sources are written in, by names that torch and pygments know.
    device: str
    language: str

    def reasons(self, request: Request) -> tuple[str, ...]:
        """Every obstacle that device, dtype and installation put in the way; nothing about the program."""
        ...

    def plan(self, program: Program, work: Workload, interval: int | Literal["auto", "parallel"]) -> Plan:
        """Walk, or intervals of how many steps, and why; from plain numbers, without looking at a tensor."""
        ...

    def solve(
        self, program: Program, operands: Sequence[Tensor], initial: Tensor, *, offsets: Tensor | None, plan: Plan, tolerance: Tolerance
    ) -> tuple[Tensor, Tensor]:
        """States `(rows, time, state)` in the dtype of `initial`, and a record `(sequences, blocks, 3)` in float32 on the same device.

        The record holds sweeps made, the largest update of the last in tolerances, and 1 where the walk repaired what had not converged. States
        are the sequential ones in any case, and nothing waits for the device.
        """
        ...

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
        """The gradients of the operands and, last, of `initial`, from the gradient `grad` of the states; None where not needed.

        `into` names tensors to write gradients of `ELEMENT` operands to, which may be the operands themselves. Sums over time, rows or channels are
        made in a fixed order. `grad` may have strides of zero.
        """
        ...

    def step(self, program: Program, state: Tensor, operands: Sequence[Tensor], out: Tensor) -> None:
        """One step: `out` `(rows, state)`, which may be `state` itself, from `state` and operands with one step, `(rows, state)` or `(rows, 1)`."""
        ...

    def source(self, program: Program) -> str:
        """The text of the kernels."""
        ...
