import json

import pytest
import torch

from pararnn.conformance.report import Verdict, run_checks
from pararnn.errors import ConformanceError


def fails():
    raise ConformanceError("it is red; paint it blue")


def breaks():
    return 1 / 0


@pytest.fixture
def report():
    checks = {"fails": fails, "breaks": breaks, "passes": lambda: None, "rests": lambda: "there is nothing to check"}
    return run_checks("cell Toy", checks, seed=5)


def test_every_check_runs_whatever_the_others_do(report):
    assert [str(result.verdict) for result in report.results] == ["failed", "failed", "passed", "not applicable"]


def test_a_failure_keeps_the_message_of_the_check(report):
    assert report.failures["fails"] == "it is red; paint it blue"


def test_an_error_is_told_with_its_place(report):
    assert report.failures["breaks"].startswith("ZeroDivisionError: division by zero [raised in test_report.py:")


def test_a_check_that_does_not_apply_says_why(report):
    assert report.results[-1].detail == "there is nothing to check"


def test_a_report_is_ready_for_json(report):
    document = json.loads(json.dumps(report.to_dict()))
    assert (document["ok"], document["seed"], document["subject"]) == (False, 5, "cell Toy")
    assert document["results"][0]["verdict"] == "failed"


def test_a_report_says_how_many_and_which(report):
    assert str(report).splitlines()[0] == "cell Toy: 1 passed, 2 failed, 1 not applicable"
    with pytest.raises(ConformanceError, match="paint it blue"):
        report.raise_for_failures()


def test_results_are_shown_as_they_come():
    shown = []
    run_checks("cell Toy", {"one": lambda: None, "two": fails}, on_result=lambda result: shown.append(result.verdict))
    assert shown == [Verdict.PASSED, Verdict.FAILED]


def test_checks_start_from_the_same_random_numbers_and_leave_the_callers_alone():
    drawn = []
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    run_checks("cell Toy", {name: lambda: drawn.append(float(torch.rand(()))) for name in "ab"}, seed=7)
    assert drawn[0] == drawn[1]
    torch.testing.assert_close(torch.rand(2), expected, rtol=0, atol=0)
