"""Solving a recurrence: the functions that users call."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pararnn.cell import Drive, check_cell, optional
from pararnn.scans.dispatch import only_numbers
from pararnn.selection import Selection, select
from pararnn.solver.again import attempt, remember
from pararnn.solver.asking import Facts, ask, facts_of, facts_of_cell
from pararnn.solver.config import NewtonConfig
from pararnn.solver.graphs import Choose, form_of, solve_in_graph
from pararnn.solver.posing import begin, check_inputs, complete, make_problem
from pararnn.solver.posing import cell_problem as cell_problem
from pararnn.solver.problem import Problem
from pararnn.solver.result import SolveResult
from pararnn.solver.torch_backend import walked
from pararnn.structures.base import Structure

DEFAULT = NewtonConfig()
# What a backend of a cell's own operations can say before anything is checked or asked, by the class of the cell: a function `(cell, x, config, h0)`
# that solves what it has solved in this form before, and gives None for anything else.
SHORT_CUTS: dict[type, Callable[[Any, Tensor, NewtonConfig, Tensor | None], SolveResult | None]] = {}


def solve(
    step: Callable[[Tensor, Drive], Tensor],
    structure: type[Structure],
    drive: Drive,
    initial: Tensor,
    *,
    config: NewtonConfig = DEFAULT,
    cu_seqlens: Tensor | None = None,
    guess: Tensor | None = None,
    bounds: tuple[float, float] | None = None,
) -> SolveResult:
    """Solve `h[t] = step(h[t-1], drive[t])` for all `t`, in parallel over time; differentiable by drive, initial state and what `step` closes over.

    Args:
        step: the recurrence, `(*lead, state)` and the drive of a step to `(*lead, state)`.
        structure: the family that its Jacobians belong to, such as `Diagonal`.
        drive: a tensor `(batch, time, ...)`, or a named tuple of such and of per-channel tensors with fewer dimensions.
        initial: the state before the first step, `(batch, state)`, or `(segments, state)` for packed sequences.
        cu_seqlens: `(segments + 1,)` cumulative lengths of sequences packed into one row.
        guess: states `(batch, time, state)` to start from, such as those of the last training step; it changes the cost, not the answer.
        bounds: a range that no state leaves.

    Raises:
        StructureError: the Jacobians of `step` are not of that structure.
        ConvergenceError: `config.on_stall` is `"raise"`, and a sequence stalled.
        InputError: the drive holds NaN or infinity, and the states do for that reason. Kernels on a GPU do not look, because that would wait for the
            device: `result.raise_for_status()` does.
    """
    problem = make_problem(step, structure, drive, initial, cu_seqlens=cu_seqlens, guess=guess, bounds=bounds, cell=getattr(step, "__self__", step))
    result: SolveResult = run(problem, config)
    return result


def newton_apply(
    cell: Any,
    x: Tensor,
    config: NewtonConfig | None = None,
    *,
    h0: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    guess: Tensor | None = None,
) -> Tensor:
    """The states `(batch, time, state)` of `cell` over `x` `(batch, time, input)`, solved in parallel over time."""
    return solve_cell(cell, x, DEFAULT if config is None else config, h0=h0, cu_seqlens=cu_seqlens, guess=guess).states


def solve_cell(
    cell: Any,
    x: Tensor,
    config: NewtonConfig,
    *,
    h0: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    guess: Tensor | None = None,
    choose: Choose | None = None,
) -> SolveResult:
    """The solve of `cell` over `x` `(batch, time, input)`.

    The backends of the cell's own operations, `cell.solve_ops`, are asked before the drive is computed. One whose implementation has
    `takes_inputs = True` is called as `implementation(cell, x, config, h0=..., cu_seqlens=..., guess=...)`, with what the user gave, unchecked.

    `choose` gives the kernel for a form of problems, as something that a compiler may take for a constant; without it a solve is left out of graphs.
    """
    is_plain = cu_seqlens is None and guess is None and not torch.compiler.is_compiling()
    found = _known(cell, x, config, h0) if is_plain else None
    if found is not None:
        return found
    found, begun = attempt(cell, x, config, h0) if is_plain else (None, None)
    if found is not None:
        return found
    if begun is None:
        check_cell(cell)
        check_inputs(x)
        if own := optional(cell, "solve_ops", ()):
            implementation = _taking_inputs(own, config.backend, facts_of_cell(cell, x, config, packed=cu_seqlens is not None))
            if implementation is not None:
                return implementation(cell, x, config, h0=h0, cu_seqlens=cu_seqlens, guess=guess)
        begun = begin(cell, x, h0=h0, cu_seqlens=cu_seqlens)
    problem = complete(cell, x, config, *begun, cu_seqlens=cu_seqlens, guess=guess)
    if torch.compiler.is_compiling() and choose is not None and cu_seqlens is None:
        kernel = choose(form_of(problem, config))
        if kernel[0]:
            return solve_in_graph(problem, config, kernel)
    return run(problem, config, repeats=is_plain)


def _known(cell: Any, x: Tensor, config: NewtonConfig, h0: Tensor | None) -> SolveResult | None:
    """What a short cut for the class of the cell gives."""
    short_cut = SHORT_CUTS.get(type(cell))
    return None if short_cut is None else short_cut(cell, x, config, h0)


def _taking_inputs(ops: Sequence[str], backend: str, facts: Facts) -> Callable[..., SolveResult] | None:
    """What serves one of `ops`, if it takes inputs instead of a problem."""
    if torch.compiler.is_compiling():
        name = _name_of_taking_inputs(tuple(ops), backend, *facts)
        return getattr(_implementations, name) if name else None
    selection = ask(tuple(ops), facts, backend)
    return selection.implementation if selection is not None and _takes_inputs(selection) else None


# Implementations by name, because a compiler that traces the choice can hold a name as a constant, but no function.
_implementations = types.SimpleNamespace()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _name_of_taking_inputs(ops: tuple[str, ...], backend: str, *facts: Any) -> str:
    """The name in `_implementations` of what `_taking_inputs` gives; empty where that is nothing."""
    selection = ask(ops, Facts(*facts), backend)
    if selection is None or not _takes_inputs(selection):
        return ""
    # An identifier: torch 2.13 refuses dots in the name of what a graph reads.
    name = f"at_{selection.backend.spec.target.encode().hex()}"
    setattr(_implementations, name, selection.implementation)
    return name


def _takes_inputs(selection: Selection) -> bool:
    return bool(getattr(selection.implementation, "takes_inputs", False))


def sequential_apply(cell: Any, x: Tensor, h0: Tensor | None = None, *, cu_seqlens: Tensor | None = None) -> Tensor:
    """The states `(batch, time, state)` of `cell` over `x` `(batch, time, input)`, one step after the other at linear cost."""
    return walk_problem(cell_problem(cell, x, DEFAULT, h0=h0, cu_seqlens=cu_seqlens)).states


def walk_problem(problem: Problem) -> SolveResult:
    """Walk `problem` step by step, whatever a planner would say."""
    with without_autocast(problem.initial):
        return walked(problem)


def step_cell(cell: Any, x: Tensor, config: NewtonConfig, *, h0: Tensor | None = None) -> SolveResult:
    """The one step of `cell` over `x` `(batch, 1, input)`: as it was written, or on a GPU by a kernel where one serves and no gradient is wanted."""
    is_plain = not torch.compiler.is_compiling() and not torch.is_grad_enabled() and only_numbers() and not torch.is_autocast_enabled(x.device.type)
    by_kernel = is_plain and x.is_cuda
    found = _known(cell, x, config, h0) if by_kernel else None
    if found is not None:
        return found
    found, begun = attempt(cell, x, config, h0, one_step=True) if by_kernel else (None, None)
    if found is not None:
        return found
    if begun is None:
        check_cell(cell)
        check_inputs(x)
        if by_kernel and (own := optional(cell, "solve_ops", ())):
            implementation = _taking_inputs(own, config.backend, facts_of_cell(cell, x, config, packed=False))
            if implementation is not None:
                return implementation(cell, x, config, h0=h0, cu_seqlens=None, guess=None)
        begun = begin(cell, x, h0=h0, cu_seqlens=None)
    problem = complete(cell, x, config, *begun, cu_seqlens=None, guess=None)
    if by_kernel:
        selection = ask(("solve",), facts_of(problem, config), config.backend)
        if selection is not None and getattr(selection.implementation, "steps_too", False):
            result: SolveResult = selection.implementation(problem, config)
            remember(problem, config, selection.implementation)
            return result
    return walk_problem(problem)


def run(problem: Problem, config: NewtonConfig, *, repeats: bool = False) -> SolveResult:
    """Solve `problem` by the backend that `config` and the request select; kernels made for the very cell are asked first.

    `repeats` says that nothing but the cell, its inputs and the initial state went into it, so that the choice can serve the next one like it.
    """
    result: SolveResult = (_run_outside if torch.compiler.is_compiling() else _run)(problem, config, repeats=repeats)
    return result


def _run(problem: Problem, config: NewtonConfig, *, repeats: bool) -> SolveResult:
    facts = facts_of(problem, config)
    selection = ask(problem.solve_ops, facts, config.backend) if problem.solve_ops else None
    if selection is None or _takes_inputs(selection):
        selection = ask(("solve",), facts, config.backend) or select(facts.request("solve"), backend=config.backend)
    if not facts.autocast:
        result = _by(selection, problem, config)
        if repeats and not facts.transformed:
            remember(problem, config, selection.implementation)
        return result
    with without_autocast(problem.initial):
        return _by(selection, problem, config)


def _by(selection: Selection, problem: Problem, config: NewtonConfig) -> SolveResult:
    """The solve by the backend that was selected, with what the result needs to explain why it was not another."""
    result: SolveResult = selection.implementation(problem, config)
    if selection.passed_over:
        vars(result)["passed_over"] = selection.passed_over
    return result


_run_outside = torch.compiler.disable(
    _run,
    reason="a parallel solve decides on the host how often to iterate, which no single graph can hold; "
    "compile with fullgraph=False, which leaves the solve out, or use ParaRNN(solver='sequential')",
)


def without_autocast(like: Tensor) -> torch.autocast:
    """Recurrences are solved in the dtype of their states: rounding each step to half precision would change the trajectory."""
    return torch.autocast(like.device.type, enabled=False)
