"""Running checks one by one, and what they found."""

from __future__ import annotations

import enum
import re
import sysconfig
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
# The check of what the others run on, where a subject has one: when it fails, they would all tell the same.
EXAMPLE = "example"
NEEDS_EXAMPLE = f"the check {EXAMPLE!r} failed, and the others run on the example"
NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]\d+)?")


class Verdict(enum.StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"
    NOT_RUN = "not run"


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

    @property
    def causes(self) -> dict[str, list[str]]:
        """The first check that failed with each message, and those after it that failed with the same one; numbers may differ."""
        alike: dict[str, list[str]] = {}
        for check, detail in self.failures.items():
            alike.setdefault(NUMBER.sub("0", detail), []).append(check)
        return {first: others for first, *others in alike.values()}

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

    def told(self) -> str:
        """Every failure, one cause once."""
        lines = []
        for check, others in self.causes.items():
            lines.append(f"  {check}: {self.failures[check]}")
            if others:
                lines.append(f"    {len(others)} more failed with the same message, numbers aside: {', '.join(others)}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return "\n".join(filter(None, (f"{self.subject}: {self.summary()}", self.told())))


def run_checks(
    subject: str, checks: Mapping[str, BoundCheck], *, seed: int = 0, on_result: Callable[[CheckResult], None] | None = None
) -> ConformanceReport:
    """Run every check, whatever the others do, each from the same random state; only without an example there is nothing to run them on.

    `on_result` is called with each result as soon as it is there, to show progress.
    """
    results: list[CheckResult] = []
    for name, check in checks.items():
        if results and results[0].check == EXAMPLE and results[0].verdict is Verdict.FAILED:
            results.append(CheckResult(check=name, verdict=Verdict.NOT_RUN, detail=NEEDS_EXAMPLE, seconds=0.0))
        else:
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


def _place(error: BaseException) -> str:
    """The line that raised `error` or its cause, in the code under test if it passed there."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    frames = [frame for one in chain for frame in traceback.extract_tb(one.__traceback__)]
    frame = ([frame for frame in frames if _is_theirs(Path(frame.filename))] or frames)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}, {frame.name}"


def _is_theirs(file: Path) -> bool:
    """Whether `file` is neither of pararnn nor of torch nor of Python itself."""
    library, installed = (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))
    if file.is_relative_to(library) and not file.is_relative_to(installed):
        return False
    return not any(file.is_relative_to(folder) for folder in (Path(__file__).parents[1], Path(torch.__file__).parent))
