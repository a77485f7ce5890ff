"""The checks of a structure, and running them all."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from pararnn.conformance import laws
from pararnn.conformance.comparison import difference
from pararnn.conformance.laws import DTYPES, STATE, Example
from pararnn.conformance.report import CheckResult, ConformanceReport, run_checks
from pararnn.conformance.scans import SEGMENTS, Case, cases, hold_gradients, packed_reference
from pararnn.errors import ConformanceError
from pararnn.scans.api import scan
from pararnn.scans.reference import walk
from pararnn.structures.base import Structure

StructureCheck: TypeAlias = Callable[[type[Structure], Example], str | None]


def check_scan_equals_walk(structure: type[Structure], example: Example) -> None:
    """`pararnn.scan` of the structure gives the states of the walk, for any length, in both directions, real and complex."""
    for dtype in DTYPES:
        for case in cases(example, dtype):
            if (how := difference(_scanned(case), walk(case.transition, case.bias, case.initial, reverse=case.reverse))) is not None:
                raise ConformanceError(
                    f"{case.words}: the states of pararnn.scan and of the walk differ {how}; if the laws hold, report this with the structure"
                )


def check_scan_of_packed_sequences(structure: type[Structure], example: Example) -> None:
    """Sequences packed into one row, empty ones among them, end as each alone does."""
    offsets = torch.tensor((0, *SEGMENTS)).cumsum(0)
    for case in cases(example, torch.float64, lengths=(sum(SEGMENTS),)):
        if case.bias.shape[0] == 1:
            starts = torch.randn(len(SEGMENTS), STATE, dtype=torch.float64)
            found = scan(case.transition, case.bias, starts, reverse=case.reverse, cu_seqlens=offsets)
            if (how := difference(found, packed_reference(case, starts))) is not None:
                raise ConformanceError(f"{case.words}, packed: the states of pararnn.scan and of each sequence walked alone differ {how}")


def check_scan_gradients(structure: type[Structure], example: Example) -> None:
    """Gradients of `pararnn.scan` by leaves, terms and initial state are those of the walk, real and complex."""
    for dtype in DTYPES:
        for case in cases(example, dtype, lengths=(1, 7, 65)):
            hold_gradients(case, _scanned, "pararnn.scan")


STRUCTURE_CHECKS: tuple[StructureCheck, ...] = (
    laws.check_members,
    laws.check_importable,
    laws.check_dense_form,
    laws.check_composition,
    laws.check_apply,
    laws.check_transpose,
    laws.check_leaves_are_linear,
    laws.check_leaf_cotangents,
    laws.check_linearize,
    laws.check_cost,
    check_scan_equals_walk,
    check_scan_of_packed_sequences,
    check_scan_gradients,
)


def structure_checks() -> dict[str, StructureCheck]:
    """Every check of a structure by name: `check(structure, example)` raises `ConformanceError`, or returns None.

    `example` is the callable of a `StructureSpec`: `(lead, state_size, *, seed, dtype)` to random members.
    """
    return {check.__name__.removeprefix("check_"): check for check in STRUCTURE_CHECKS}


def verify_structure(
    structure: type[Structure], example: Example, *, seed: int = 0, on_result: Callable[[CheckResult], None] | None = None
) -> ConformanceReport:
    """Run every check on the class `structure`, with members from `example`; see `structure_checks`."""
    checks = {name: functools.partial(check, structure, example) for name, check in structure_checks().items()}
    return run_checks(f"structure {structure.__name__}", checks, seed=seed, on_result=on_result)


def _scanned(case: Case) -> Tensor:
    return scan(case.transition, case.bias, case.initial, reverse=case.reverse)
