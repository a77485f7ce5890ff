"""The kit as pytest tests, one for each check.

    from pararnn.conformance import parametrize_with_checks
    from my_package import plugin

    @parametrize_with_checks(*plugin.pararnn_register_cells(), *plugin.pararnn_register_structures())
    def test_conformance(check):
        check()

Records work from the source folder; names (`"ParaCfC"`, `"scan/diagonal:numba"`, `"all"`) mean what is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pararnn.conformance.report import EXAMPLE, NEEDS_EXAMPLE, BoundCheck, run_checks, seeded
from pararnn.conformance.subjects import Subject, Verifiable, subject_of, subjects_named


@dataclass(frozen=True)
class PytestCheck:
    """One check of one subject, as the argument of a test: call it. It skips the test where there is nothing to check, or no example to check on."""

    subject: Subject
    name: str
    check: BoundCheck
    seed: int

    def __call__(self) -> None:
        import pytest

        try:
            reason = seeded(self.check, self.seed)
        except Exception:
            # The test of the example itself fails; the same cause in each of the others would hide it.
            if self.name == EXAMPLE or not self._example_fails():
                raise
            reason = NEEDS_EXAMPLE
        if reason is not None:
            pytest.skip(reason)

    def _example_fails(self) -> bool:
        check = self.subject.checks(seed=self.seed).get(EXAMPLE)
        return check is not None and run_checks(str(self.subject), {EXAMPLE: check}, seed=self.seed).failures != {}

    def __str__(self) -> str:
        return f"{self.subject.label}-{self.name}"


def parametrize_with_checks(*subjects: Verifiable | Subject | str, seed: int = 0) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that runs a test, which takes an argument `check` and calls it, once for each check of each subject.

    Needs pytest.

    Raises:
        UnknownNameError, AmbiguousNameError: a name that nothing installed has, or several have.
    """
    import pytest

    chosen: list[Subject] = []
    for subject in subjects:
        chosen += subjects_named(subject) if isinstance(subject, str) else (subject if isinstance(subject, Subject) else subject_of(subject),)
    checks = [PytestCheck(subject, name, check, seed) for subject in chosen for name, check in subject.checks(seed=seed).items()]
    return pytest.mark.parametrize("check", checks, ids=str)
