"""The entry to solves in parallel over depth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pararnn.errors import ConfigError, DTypeError
from pararnn.solver.api import without_autocast
from pararnn.solver.config import DEFAULT_TOLERANCES
from pararnn.transforms import inside_transform
from pararnn_nanode.depth.factored import factored
from pararnn_nanode.depth.gradient import WALK, attach
from pararnn_nanode.depth.iteration import Trajectory, iterate
from pararnn_nanode.depth.jacobian import structure_of
from pararnn_nanode.depth.planner import DTYPES, Parallel, Plan, Way, default_blocks, plan
from pararnn_nanode.depth.stages import Stages
from pararnn_nanode.depth.strangers import refuse_strangers
from pararnn_nanode.depth.windows import Windows, solve_windows
from pararnn_nanode.fields.base import Field
from pararnn_nanode.fields.callable import UnmappableError
from pararnn_nanode.integrate import fixed
from pararnn_nanode.integrate.capture import Capture
from pararnn_nanode.integrate.catalogue import find
from pararnn_nanode.integrate.methods import Method
from pararnn_nanode.integrate.reads import Drive, reads
from pararnn_nanode.integrate.runge_kutta import RungeKutta
from pararnn_nanode.integrate.schedule import Schedule
from pararnn_nanode.integrate.sharing import while_reading
from pararnn_nanode.solution import Solution

CHOICES = ("newton", "picard", "windowed", "auto")
GRADIENT = "implicit"


class _UnsettledError(Exception):
    """An iteration did not converge; the caller walks."""

    def __init__(self, found: Trajectory) -> None:
        super().__init__()
        self.found = found


@while_reading
@torch.compiler.disable(  # type: ignore[untyped-decorator]
    reason="a parallel solve decides on the host how often to iterate, which no single graph can hold; use parallel=None under fullgraph=True"
)
def integrate(
    field: Field,
    x: Tensor,
    schedule: Schedule,
    *,
    method: str | Method = "euler",
    parallel: Parallel = "newton",
    window: int | None = None,
    tolerance: float | None = None,
    u: Drive = None,
    parameters: Sequence[Tensor] | None = None,
) -> Solution:
    """The states at the asked times of `schedule`, all steps solved at once; the answer, and its gradient, are those of the walk.

    Args:
        parallel: "newton" corrects with Jacobians of blocks of steps and needs a field that says what structure they have; "picard" needs
            nothing, and more iterations; "windowed" solves windows of steps one after the other, and keeps little in memory; "auto" chooses, the walk
            included.
        window: steps of a window, for "windowed".
        tolerance: error to allow, relative to `1 + |state|`, for a sample that stays small to its size; by default 1e-6 in single precision and
            1e-11 in double. The rule is that of `pararnn_nanode.depth.stop`.
        x, method, u: as in `pararnn_nanode.integrate.fixed.integrate`, for Runge-Kutta methods.
        parameters: as there, for "windowed".

    Raises:
        ConfigError: no such choice, a method that is no Runge-Kutta method, a field without a structure for "newton".
        NonFiniteStateError: the equation itself leaves the finite numbers.
    """
    chosen = find(method)
    _check(field, x, chosen, parallel, window, tolerance)
    planned = plan(field, chosen, schedule, x, parallel=parallel, window=window)
    if planned.choice == "walk" or not isinstance(chosen, RungeKutta) or schedule.steps == 0 or x.numel() == 0:
        return replace(fixed.integrate(field, x, schedule, method=chosen, u=u), reason=planned.reason)
    if inside_transform():
        # Iterations look at numbers, which a transform does not show.
        return replace(
            fixed.integrate(field, x, schedule, method=chosen, u=u), reason="Walked step by step because a torch.func transform is active."
        )
    try:
        with without_autocast(x):
            solve = _windowed if planned.choice == "windowed" else _whole
            return solve(factored(field, x), x, schedule, chosen, planned, tolerance, u, tuple(parameters or ()))
    except _UnsettledError as stop:
        return _walked(field, x, schedule, chosen, u, stop.found)
    except UnmappableError as error:
        if parallel != "auto":
            raise
        return replace(fixed.integrate(field, x, schedule, method=chosen, u=u), reason=f"Walked step by step because {error}.")


def _whole(
    field: Field, x: Tensor, schedule: Schedule, method: RungeKutta, planned: Plan, tolerance: float | None, u: Drive, parameters: tuple[Tensor, ...]
) -> Solution:
    stages = Stages.read(field, method, schedule, reads(field, method, schedule, x, u), x, u)
    way: Way = "picard" if planned.choice == "picard" else "newton"
    after, found = _trajectory(stages, x, way=way, blocks=planned.blocks, tolerance=tolerance)
    if schedule.outputs == (schedule.steps,):
        states = after[-1:]
    else:
        states = torch.cat((x.unsqueeze(0), after))[list(schedule.outputs)]
    return _solution(states, schedule, method, planned.reason, (found,))


def _windowed(
    field: Field, x: Tensor, schedule: Schedule, method: RungeKutta, planned: Plan, tolerance: float | None, u: Drive, parameters: tuple[Tensor, ...]
) -> Solution:
    way: Way = "picard" if field.structure is None else "newton"
    moving = schedule.knots.requires_grad
    fixed_reads = None if moving else reads(field, method, schedule, x, u)
    record: list[Trajectory] = []
    finer = _finer(x.dtype, tolerance)

    def solve(first: int, last: int, start: Tensor, drive: Drive) -> Tensor:
        # Where times have gradients they are read anew for each window, whose backward pass frees the graph that leads to them.
        times = reads(field, method, schedule, x, drive) if fixed_reads is None else fixed_reads
        stages = Stages.read(field, method, schedule, times, start, drive, first=first, last=last)
        after, found = _trajectory(stages, start, way=way, blocks=default_blocks(last - first, start.dtype), tolerance=finer)
        record.append(found)
        return after

    bounds = (*range(0, schedule.steps, planned.window), schedule.steps)
    windows = Windows(solve=solve, bounds=bounds, outputs=schedule.outputs)
    known = (*field.outside, *parameters)
    if torch.is_grad_enabled():
        # Once a window: a field may read some of its tensors at some times only.
        refuse_strangers(field, x, schedule, u, (*bounds[:-1], schedule.steps - 1), known)
    states = solve_windows(windows, Capture.of(field, u=u), x, u, schedule.knots if moving else None, known)
    # The backward pass solves again and adds to the record; what was spent until here is this call's.
    return _solution(states, schedule, method, planned.reason, tuple(record))


def _finer(dtype: torch.dtype, tolerance: float | None) -> float:
    """The tolerance of a window, as far below that of the whole as rounding allows: later windows make the errors of earlier ones larger."""
    allowed = DEFAULT_TOLERANCES[dtype.to_real()][0] if tolerance is None else tolerance
    return min(allowed, max(allowed / 10, 16 * torch.finfo(dtype).eps))


def _trajectory(stages: Stages, x: Tensor, *, way: Way, blocks: int, tolerance: float | None) -> tuple[Tensor, Trajectory]:
    """The states after all steps, on the graph where gradients are on, and how they were found."""
    with torch.no_grad():
        found = iterate(stages.detach(), x.detach(), way=way, blocks=blocks, tolerance=tolerance)
    if not found.converged:
        raise _UnsettledError(found)
    if not torch.is_grad_enabled():
        return found.states[1:], found
    return attach(stages, x, found.states, found.correction, advice=WALK), replace(
        found, evaluations=found.evaluations + stages.steps * stages.method.evaluations
    )


def _solution(states: Tensor, schedule: Schedule, method: Method, reason: str, found: tuple[Trajectory, ...]) -> Solution:
    return Solution(
        x=states,
        t=schedule.times,
        nfe=sum(one.evaluations for one in found),
        steps=schedule.steps,
        method=method.name,
        gradient=GRADIENT,
        iterations=max(len(one.updates) for one in found),
        residual=max(one.updates[-1] for one in found),
        reason=reason,
    )


def _walked(field: Field, x: Tensor, schedule: Schedule, method: Method, u: Drive, found: Trajectory) -> Solution:
    solution = fixed.integrate(field, x, schedule, method=method, u=u)
    last = found.updates[-1]
    why = f"the iteration did not converge ({len(found.updates)} iterations, last update {last:.1e}); take smaller steps or windows, or parallel=None"
    if not found.alike:
        why = (
            "the field gives other slopes for all times at once than for one alone, and a parallel solve needs a field that takes many times at once"
        )
    return replace(
        solution,
        nfe=solution.nfe + found.evaluations,
        iterations=len(found.updates),
        residual=last,
        converged=False,
        reason=f"Walked step by step because {why}.",
    )


def _check(field: Field, x: Tensor, method: Method, parallel: str, window: int | None, tolerance: float | None) -> None:
    if parallel not in CHOICES:
        raise ConfigError(f"parallel must be one of {', '.join(CHOICES)} (or None for a walk), got {parallel!r}")
    if window is not None and (parallel != "windowed" or isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise ConfigError(f"window is a number of steps of at least 1 for parallel='windowed', got {window!r} with parallel={parallel!r}")
    if tolerance is not None and not 0 < tolerance < math.inf:
        raise ConfigError(f"tolerance must be a finite number above 0, got {tolerance!r}")
    if parallel == "auto":
        return
    if not isinstance(method, RungeKutta):
        raise ConfigError(f"{method.name} carries more than the state from step to step; parallel solves take Runge-Kutta methods such as 'heun'")
    if x.dtype not in DTYPES:
        raise DTypeError(f"parallel solves work in single and double precision, got a state of {x.dtype}; use x.float(), or parallel=None")
    if parallel == "newton":
        structure_of(field)
