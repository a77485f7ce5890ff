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
from pararnn.distributions import CORE
from pararnn.solver.planner import Plan
from pararnn_cfc.fused_inside import program_inside
from pararnn_cfc.fused_program import program

# Bytes of projections that a thread of a CPU works on at once: they stay in its cache, which is worth several times the product that makes them.
CACHED = 1 << 21
# Lanes from which on kernels that walk project by themselves, if they can; and states in all from which on the kernels of the gradients do.
STREAMED, MANY_STATES = 10560, 1 << 20
# Lanes that a thread has to have, and the least steps of a block in intervals of shooting.
LANES, INTERVALS = 64, 16


class Question(NamedTuple):
    """All that a setting follows from.

    Attributes:
        engine: what the core calls it.
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
        inside: the program that projects by itself in the forward pass; None where projections are made before.
        inside_backward: the same in the backward pass.
        bound: limit of the recurrent weights.
        blocks: what is worked on at once; those of the same rows follow each other, in order of time. On a GPU one, which is the whole.
    """

    engine: Engine
    program: Program
    inside: Program | None
    inside_backward: Program | None
    plan: Plan
    tolerance: Tolerance
    bound: float | None
    blocks: tuple[Block, ...]

    @functools.cached_property
    def by_address(self) -> bool:
        """Whether kernels are launched with addresses, as `fused_direct` does."""
        return self.engine.name == "triton"


@functools.lru_cache(maxsize=4096)
def setting(question: Question) -> Setting:
    """The setting that answers `question`."""
    # Others may call theirs the same.
    engine = engine_named(f"{CORE}:{question.engine}")
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
    # A single step is over before the weights would be laid out for it.
    is_streamed = plan.walks and work.length > 1 and (question.engine == "native" or work.sequences * work.state >= STREAMED)
    is_many = question.engine != "native" and work.rows * work.length * work.state >= MANY_STATES
    inside = program_inside(question.dtype, question.bound, question.features, **form) if question.features and (is_streamed or is_many) else None
    is_whole = question.packed or question.device != "cpu"
    return Setting(
        engine=engine,
        program=steps,
        inside=inside if is_streamed else None,
        inside_backward=inside,
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
