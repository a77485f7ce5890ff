"""How a fused solve goes about its work: engine, program, plan, and blocks of time that fit into a cache; remembered by plain numbers."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch

from pararnn.compiler.engine import Engine, Tolerance, Workload
from pararnn.compiler.engines import engine_named
from pararnn.compiler.program import Program
from pararnn.compiler.solving import LIMIT
from pararnn.solver.planner import Plan
from pararnn_cfc.fused_inside import program_inside
from pararnn_cfc.fused_program import program

# Bytes of projections that a thread of a CPU works on at once: they stay in its cache, which is worth several times the product that makes them.
CACHED = 1 << 21
# Lanes from which on kernels walk in both directions: there they project by themselves, if they can.
STREAMED = 10560
# Lanes that a thread has to have, and the least steps of a block in intervals of shooting.
LANES, INTERVALS = 64, 16


class Question(NamedTuple):
    """All that a setting follows from.

    Attributes:
        engine: its name.
        device: `"cpu"` or `"cuda"`.
        dtype: of the states.
        projected: of the projections.
        bound: limit of the recurrent weights.
        biased: whether the projection has a bias.
        features: how many the kernels can project themselves, 0 where they cannot.
        rows, length, state: as in `Workload`.
        sequences, longest: of packed sequences, else those of the rows; `packed` tells which.
        threads: of a CPU.
        interval, absolute, relative: what the user asks for.
        sweeps: the most that the user allows; 0 leaves it to the plan.
    """

    engine: str
    device: str
    dtype: torch.dtype
    projected: torch.dtype
    bound: float | None
    biased: bool
    features: int
    rows: int
    length: int
    state: int
    sequences: int
    longest: int
    packed: bool
    threads: int
    interval: int | Literal["auto", "parallel"]
    absolute: float
    relative: float
    sweeps: int


class Block(NamedTuple):
    """Steps `start` to `stop` of some rows, and how they are solved."""

    rows: slice
    start: int
    stop: int
    plan: Plan

    def size(self, rows: int) -> int:
        """How many rows it has, of `rows` in all."""
        return len(range(*self.rows.indices(rows)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """The answer.

    Attributes:
        engine, program, plan, tolerance: of the whole solve.
        inside: the program that projects by itself; None where projections are made before.
        bound: limit of the recurrent weights.
        blocks: what is worked on at once; those of the same rows follow each other, in order of time. On a GPU one, which is the whole.
    """

    engine: Engine
    program: Program
    inside: Program | None
    plan: Plan
    tolerance: Tolerance
    bound: float | None
    blocks: tuple[Block, ...]


@functools.lru_cache(maxsize=4096)
def setting(question: Question) -> Setting:
    """The setting that answers `question`."""
    engine = engine_named(question.engine)
    work = Workload(
        rows=question.rows,
        length=question.length,
        state=question.state,
        sequences=question.sequences,
        longest=question.longest,
        itemsize=question.dtype.itemsize,
    )
    form = {"guarded": question.device != "cpu", "biased": question.biased}
    steps = program(question.dtype, question.bound, **form)
    plan = engine.plan(steps, work, question.interval)
    is_streamed = plan.walks and work.sequences * work.state >= STREAMED
    inside = program_inside(question.dtype, question.bound, question.features, **form) if question.features and is_streamed else None
    is_whole = question.packed or question.device != "cpu"
    return Setting(
        engine=engine,
        program=steps,
        inside=inside,
        plan=plan,
        tolerance=Tolerance(absolute=question.absolute, relative=question.relative, sweeps=question.sweeps or max(1, min(plan.patience, LIMIT))),
        bound=question.bound,
        blocks=(Block(slice(None), 0, question.length, plan),) if is_whole else _blocks(engine, steps, work, plan, question),
    )


def _blocks(engine: Engine, steps: Program, work: Workload, plan: Plan, question: Question) -> tuple[Block, ...]:
    """Blocks that fit into the caches of the threads: whole rows if they can, else as few as keep the threads busy, so that blocks are long."""
    step = 2 * work.state * question.projected.itemsize
    memory = CACHED * question.threads
    rows = min(work.rows, max(question.threads * max(1, LANES // work.state), memory // (step * work.length)))
    parts = -(-work.length // max(1, memory // (rows * step)))
    length = -(-work.length // parts)
    if not plan.walks:
        length = max(-(-length // plan.interval), INTERVALS) * plan.interval
    blocks = []
    for first in range(0, work.rows, rows):
        last = min(first + rows, work.rows)
        for start in range(0, work.length, length):
            stop = min(start + length, work.length)
            part = replace(work, rows=last - first, sequences=last - first, length=stop - start, longest=stop - start)
            blocks.append(Block(slice(first, last), start, stop, engine.plan(steps, part, part.length if plan.walks else plan.interval)))
    return tuple(blocks)
