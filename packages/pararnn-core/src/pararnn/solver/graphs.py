"""Solves inside a graph that `torch.compile` makes, where a kernel serves; anything else is left out of the graph.

A compiler that traces the solver cannot follow the choice of a kernel: it asks for it as for a constant, with what it knows of the problem, its
*form*. The step is traced besides, for nothing but what the compiler learns on the way: which attributes it depends on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from pararnn.compiler.columns import fitted
from pararnn.compiler.engines import find_engine
from pararnn.compiler.places import Path
from pararnn.compiler.record import Record
from pararnn.registry import installed
from pararnn.solver import drive as drives
from pararnn.solver.asking import ask, facts_of
from pararnn.solver.config import NewtonConfig
from pararnn.solver.planner import Plan
from pararnn.solver.posing import make_problem
from pararnn.solver.problem import Problem
from pararnn.solver.result import SolveResult
from pararnn.solver.sequential import walk

REASON = "kernels in a graph plan when they run, for the sizes that they meet"


class Kernel(NamedTuple):
    """The kernel that serves; empty where none does.

    Attributes:
        engine, program: what they are called.
        kinds: of the tensors with operands, a letter each.
        leaves: names of the leaves of the drive, which are the first of these tensors, with commas between; empty names where they have none.
        captured: attributes of the cell that hold the rest.
    """

    engine: str = ""
    program: str = ""
    kinds: str = ""
    leaves: str = ""
    captured: tuple[tuple[str, ...], ...] = ()


# Type of the drive and of each leaf; dtype and device of the states; options of the solve.
Form: TypeAlias = tuple[Any, ...]
Choose: TypeAlias = Callable[[Form], Kernel]


def form_of(problem: Problem, config: NewtonConfig) -> Form:
    """What a choice depends on, all of it constant to a compiler."""
    leaves = drives.leaves(problem.drive)
    shapes = tuple((drives.is_timed(leaf), tuple(leaf.shape[2:]) if drives.is_timed(leaf) else tuple(leaf.shape), leaf.dtype) for leaf in leaves)
    initial, kind = problem.initial, None if isinstance(problem.drive, Tensor) else type(problem.drive)
    options = (config.backend, config.derivatives, config.on_stall, config.jacobian, config.scan_backend)
    return kind, shapes, initial.shape[-1], initial.dtype, str(initial.device), torch.is_grad_enabled(), options


def choose(cell: Any, form: Form) -> Kernel:
    """The kernel that serves `cell` with problems of this form."""
    from pararnn.compiler.ops import register

    kind, shapes, state, dtype, device, needs_grad, options = form
    backend, derivatives, on_stall, jacobian, scan_backend = options
    config = NewtonConfig(backend=backend, derivatives=derivatives, on_stall=on_stall, jacobian=jacobian, scan_backend=scan_backend)
    leaves = [torch.empty((1, 1, *shape) if timed else shape, dtype=dtype, device=device) for timed, shape, dtype in shapes]
    drive = leaves[0] if kind is None else kind._make(leaves) if hasattr(kind, "_make") else tuple(leaves)
    claims: dict[str, Any] = {"linear": getattr(cell, "is_linear", False), "exact": getattr(cell, "exact_jacobian", True)}
    problem = make_problem(cell.step, cell.structure, drive, torch.empty(1, state, dtype=dtype, device=device), state_size=state, cell=cell, **claims)
    facts = facts_of(problem, config, compiling=True)._replace(needs_grad=needs_grad)
    selection = ask(("solve",), facts, backend)
    name = "" if selection is None else installed().backends("solve").label(selection.backend)
    found = problem.compiled if name and find_engine(name) is not None else ()
    if isinstance(found, tuple):
        return Kernel()
    paths = [_attributes(path) for path in found.paths]
    if getattr(cell.step, "__self__", None) is not cell or None in paths:
        return Kernel()
    kinds = "".join(kind.value for kind in found.program.tensors)
    names = ",".join(getattr(kind, "_fields", ("",) * len(leaves)))
    return Kernel(name, register(found.program), kinds, names, tuple(path for path in paths if path))


def _attributes(path: Path) -> tuple[str, ...] | None:
    """The names on a path from a method over its module; None where the path goes elsewhere."""
    names = tuple(name for how, name in path if how == ".")
    return names[1:] if len(names) == len(path) and names[0] == "__self__" else None


def solve_in_graph(problem: Problem, config: NewtonConfig, kernel: Kernel) -> SolveResult:
    """The solve of `problem`, not packed, by `kernel` as one node of the graph; without a step or a sequence none is launched."""
    from pararnn.compiler.ops import solve_op

    engine, program, kinds, leaves, captured = kernel
    initial = problem.initial[:, 0]
    if problem.is_empty:
        states, record = walk(problem), initial.new_zeros(problem.rows, 3, dtype=torch.float32)
        return _result(problem, engine, states, record)
    found = [*drives.leaves(problem.drive)]
    for path in captured:
        value: Any = problem.cell
        for name in path:
            value = getattr(value, name)
        found.append(value)
    carry = torch.promote_types(problem.initial.dtype, torch.float32)
    tensors = [fitted(tensor, carry, flat=kind == "c") for kind, tensor in zip(kinds, found, strict=True)]
    with torch.no_grad():
        problem.step(problem.initial[:1, 0], drives.map_timed(lambda leaf: leaf[:1, 0], problem.drive))
    absolute, relative = config.tolerances(initial.dtype)
    asked = engine, program, tensors, initial, None, 0, str(config.interval), absolute, relative, config.max_iters or 0, leaves
    return _result(problem, engine, *solve_op(*asked))


def _result(problem: Problem, engine: str, states: Tensor, record: Tensor) -> SolveResult:
    """The result that has these states and the record `(sequences, 3)`."""
    length, lanes = problem.length, problem.rows * problem.state_size
    facts: dict[str, Any] = {"walk": 0.0, "sweep": 0.0, "parallel": 0.0, "patience": 0, "by_autograd": False}
    plan = Plan(interval=length, length=length, lanes=lanes, reason=REASON, **facts)
    source = Record(plan, states, problem.initial[:, 0], record.unsqueeze(1), None)
    return SolveResult.deferred(source, states=states, plan=plan, backend=engine)
