"""Running checks one by one, and what they found."""

from __future__ import annotations

import enum
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import torch

from pararnn.errors import ConformanceError, sentence

# A check returns None, or a sentence that says why there is nothing to check.
BoundCheck: TypeAlias = Callable[[], str | None]


class Verdict(enum.StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One check: its name, how it ended, why (empty where it passed), and the seconds it took."""

    check: str
    verdict: Verdict
    detail: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ConformanceReport:
    """All checks of one cell, structure or backend.

    Attributes:
        subject: what was checked, in words.
        results: one for each check, in the order in which they ran.
        seed: what random numbers were started from; the same seed gives the same report.
    """

    subject: str
    results: tuple[CheckResult, ...]
    seed: int

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    @property
    def failures(self) -> dict[str, str]:
        """The message of every check that failed."""
        return {result.check: result.detail for result in self.results if result.verdict is Verdict.FAILED}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        results = [asdict(result) | {"verdict": str(result.verdict)} for result in self.results]
        return {"subject": self.subject, "ok": self.ok, "seed": self.seed, "results": results}

    def raise_for_failures(self) -> Self:
        """Return this report, or raise `ConformanceError` with every failure."""
        if not self.ok:
            raise ConformanceError(str(self), report=self)
        return self

    def summary(self) -> str:
        """How many checks passed, failed and did not apply."""
        counts = {verdict: sum(result.verdict is verdict for result in self.results) for verdict in Verdict}
        return ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)

    def __str__(self) -> str:
        return "\n".join((f"{self.subject}: {self.summary()}", *(f"  {check}: {detail}" for check, detail in self.failures.items())))


def run_checks(
    subject: str, checks: Mapping[str, BoundCheck], *, seed: int = 0, on_result: Callable[[CheckResult], None] | None = None
) -> ConformanceReport:
    """Run every check, whatever the others do, each from the same random state.

    `on_result` is called with each result as soon as it is there, to show progress.
    """
    results = []
    for name, check in checks.items():
        results.append(_run(name, check, seed))
        if on_result is not None:
            on_result(results[-1])
    return ConformanceReport(subject=subject, results=tuple(results), seed=seed)


def _run(name: str, check: BoundCheck, seed: int) -> CheckResult:
    started = time.perf_counter()
    try:
        detail = seeded(check, seed)
        verdict = Verdict.PASSED if detail is None else Verdict.NOT_APPLICABLE
    except ConformanceError as error:
        verdict, detail = Verdict.FAILED, str(error)
    except Exception as error:
        verdict, detail = Verdict.FAILED, f"{sentence(error)} [raised in {_place(error)}]"
    return CheckResult(check=name, verdict=verdict, detail=detail or "", seconds=time.perf_counter() - started)


def seeded(check: BoundCheck, seed: int) -> str | None:
    """What `check` returns when random numbers start from `seed`; the caller's own are left alone."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        return check()


def _place(error: Exception) -> str:
    """The line that raised `error`, in the code under test if it passed there."""
    ours = (Path(__file__).parents[1], Path(torch.__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [frame for frame in frames if not any(Path(frame.filename).is_relative_to(folder) for folder in ours)]
    frame = (foreign or frames)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}, {frame.name}"
