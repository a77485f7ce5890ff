"""The passes of a forward solve: which operations of a program are computed when."""

from __future__ import annotations

from dataclasses import dataclass

from pararnn.compiler.native.graph import Graph, Stage
from pararnn.compiler.program import Program, Value


@dataclass(frozen=True)
class Forward:
    """Passes of a forward solve.

    Attributes:
        still: what channels decide, once a task.
        early: what does not depend on the state, all steps of a tile at once.
        brief: the part of it that a walk needs.
        value: from a state to the next.
        advance: the same with the slope.
    """

    still: Stage
    early: Stage
    brief: Stage
    value: Stage
    advance: Stage


@dataclass(frozen=True)
class Backward:
    """Passes of a backward solve, in which states are known beforehand.

    Attributes:
        still: what channels decide, once a task.
        early: what does not depend on the costate, the slope last.
        late: the gradients, from the costate.
    """

    still: Stage
    early: Stage
    late: Stage


def forward_stages(program: Program) -> Forward:
    """The passes of `program`; equal operations of its expressions are one."""
    graph = Graph(_stages(program) | {"state": 2})
    inputs = _inputs(program)
    value = graph.stage(2, graph.add(program.value, inputs))
    advance = graph.stage(2, graph.add(program.advance, inputs))
    early = graph.stage(1, graph.kept(1, value, advance))
    brief = graph.stage(1, graph.kept(1, value))
    return Forward(graph.stage(0, graph.kept(0, early, value, advance)), early, brief, value, advance)


def backward_stages(program: Program, needs: tuple[bool, ...]) -> Backward:
    """The passes for the gradients of those operands of `program` that are needed."""
    graph = Graph(_stages(program) | {"state": 1, "costate": 2})
    inputs = _inputs(program)
    gradients = graph.add(program.pull, inputs | {"costate": "costate"})[1:]
    slope = graph.add(program.pull, inputs | {"costate": 1.0})[0]
    late = graph.stage(2, [gradient for gradient, need in zip(gradients, needs, strict=True) if need])
    early = graph.stage(1, [*graph.kept(1, late), slope])
    return Backward(graph.stage(0, graph.kept(0, early, late)), early, late)


def _stages(program: Program) -> dict[str, int]:
    return {name: int(kind.is_timed) for name, kind in zip(program.operands, program.kinds, strict=True)}


def _inputs(program: Program) -> dict[str, Value]:
    return {name: name for name in ("state", *program.operands)}
