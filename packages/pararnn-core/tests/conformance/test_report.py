import json

import pytest
import torch

from pararnn.conformance.report import Verdict, run_checks
from pararnn.errors import CellError, ConformanceError


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


def says(message):
    def check():
        raise ConformanceError(message)

    return check


def test_failures_with_the_same_message_are_told_once_whatever_the_numbers():
    checks = {
        "one": says("off by 1.5e-03; mend it"),
        "other": says("it is red"),
        "two": says("off by 2e+01; mend it"),
        "three": says("off by 7; mend it"),
    }
    report = run_checks("cell Toy", checks)
    assert str(report).splitlines() == [
        "cell Toy: 4 failed",
        "  one: off by 1.5e-03; mend it",
        "    2 more failed with the same message, numbers aside: two, three",
        "  other: it is red",
    ]
    assert report.failures["three"] == "off by 7; mend it"


def test_without_an_example_the_others_are_not_run():
    ran = []
    checks = {"example": fails, "one": lambda: ran.append("one"), "two": breaks}
    report = run_checks("cell Toy", checks)
    assert ran == []
    assert [str(result.verdict) for result in report.results] == ["failed", "not run", "not run"]
    assert str(report) == "cell Toy: 1 failed, 2 not run\n  example: it is red; paint it blue"
    assert "the check 'example' failed" in report.to_dict()["results"][1]["detail"]


def test_with_an_example_the_others_run():
    assert [str(result.verdict) for result in run_checks("cell Toy", {"example": lambda: None, "one": fails}).results] == ["passed", "failed"]


def test_the_place_of_an_error_is_in_the_code_under_test_and_not_in_the_library_that_it_calls():
    message = run_checks("cell Toy", {"one": lambda: json.loads("{")}).failures["one"]
    assert "[raised in test_report.py:" in message


def test_the_place_of_an_error_that_another_explains_is_where_the_first_was_raised():
    def explains():
        try:
            breaks()
        except ZeroDivisionError as error:
            raise CellError("the step of Toy fails; mend it") from error

    message = run_checks("cell Toy", {"one": explains}).failures["one"]
    assert message.startswith("the step of Toy fails; mend it [raised in test_report.py:")
    assert message.endswith(", breaks]")
