"""The checks of a cell, and running them all."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from pararnn.conformance import cell_claims, cell_drives, cell_engines, cell_modules, cell_solves, cell_steps
from pararnn.conformance.report import CheckResult, ConformanceReport, run_checks
from pararnn.conformance.samples import in_dtype

CellCheck: TypeAlias = Callable[[Any, Tensor], str | None]

CHECKS: tuple[CellCheck, ...] = (
    cell_steps.check_protocol,
    cell_steps.check_step_broadcasts,
    cell_steps.check_readout_broadcasts,
    cell_steps.check_step_is_deterministic,
    cell_steps.check_step_writes_nothing,
    cell_steps.check_step_keeps_sequences_apart,
    cell_drives.check_drive_is_causal,
    cell_drives.check_drive_keeps_sequences_apart,
    cell_drives.check_drive_takes_one_sample_at_a_time,
    cell_claims.check_structure_holds_the_jacobian,
    cell_claims.check_analytic_jacobian,
    cell_claims.check_linear_claim,
    cell_claims.check_state_bounds,
    cell_claims.check_guess,
    cell_claims.check_newton_iters,
    cell_claims.check_solve_ops,
    cell_modules.check_step_gradients,
    cell_solves.check_parallel_equals_walk,
    cell_solves.check_initial_state,
    cell_solves.check_packed_sequences,
    cell_solves.check_decoding,
    cell_solves.check_stacking,
    cell_solves.check_long_sequences,
    cell_solves.check_float32,
    cell_engines.check_compiled_equals_walk,
    cell_modules.check_copies,
    cell_modules.check_functional_call,
    cell_modules.check_ensembles,
    cell_modules.check_single_samples,
)


def cell_checks() -> dict[str, CellCheck]:
    """Every check of a cell by name: `check(cell, x)` raises `ConformanceError`, or returns why there is nothing to check, or None.

    `cell` has its weights in float64 and is in the state in which it would be trained; `x` `(batch, time, input)` are samples that suit it. How many
    does not matter, checks repeat them.
    """
    return {check.__name__.removeprefix("check_"): check for check in CHECKS}


def verify_cell(cell: nn.Module, x: Tensor, *, seed: int = 0, on_result: Callable[[CheckResult], None] | None = None) -> ConformanceReport:
    """Run every check on `cell` with samples `x` `(batch, time, input)`, each on a copy in float64; `cell` itself stays as it is.

    `seed` is where checks start their random numbers from; `on_result` is called with each result as soon as it is there.
    """

    def bound(check: CellCheck) -> str | None:
        return check(_working_copy(cell), x.detach().to(torch.float64))

    checks = {name: functools.partial(bound, check) for name, check in cell_checks().items()}
    return run_checks(f"cell {type(cell).__name__}", checks, seed=seed, on_result=on_result)


def _working_copy(cell: Any) -> Any:
    if not isinstance(cell, nn.Module):
        return cell
    try:
        return in_dtype(cell, torch.float64)
    except Exception:
        # What cannot be copied is reported by check_copies; the other checks leave a cell as they found it.
        return cell
