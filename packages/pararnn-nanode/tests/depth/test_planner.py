"""A solve in parallel is chosen where it pays, with a reason, and refused where it cannot work."""

import pytest
import torch

from pararnn.errors import ConfigError, DTypeError, ShapeError
from pararnn.structures import Dense
from pararnn_nanode.depth.planner import estimates, plan
from pararnn_nanode.depth.solve import integrate
from pararnn_nanode.fields.callable import CallableField
from pararnn_nanode.integrate.catalogue import find
from pararnn_nanode.integrate.schedule import schedule


def planned(field, x, steps, *, method="euler", parallel="auto"):
    return plan(field, find(method), schedule(1.0, steps=steps, span=(0.0, 1.0)), x, parallel=parallel)


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("dim", [4, 256])
def test_ten_steps_are_always_walked(dense, dim, batch):
    found = planned(dense(dim), torch.randn(batch, dim), 10)
    assert found.choice == "walk"
    assert "10 steps are too few" in found.reason


def test_many_steps_of_a_small_state_are_solved_in_parallel(dense):
    found = planned(dense(32).float(), torch.randn(1, 32, dtype=torch.float32), 1024)
    assert found.choice == "newton"
    assert "1024 steps" in found.reason
    assert "ms" in found.reason


def test_many_samples_of_a_large_state_are_walked(dense):
    assert planned(dense(128).float(), torch.randn(256, 128, dtype=torch.float32), 1024).choice == "walk"


def test_a_field_without_structure_is_left_to_picard():
    field = CallableField(lambda t, x: torch.sin(x))
    assert planned(field, torch.randn(1, 4, dtype=torch.float32), 4096).choice == "picard"


def test_a_method_that_carries_more_than_the_state_is_walked(dense):
    found = planned(dense(), torch.randn(1, 5), 1024, method="reversible_heun")
    assert found.choice == "walk"
    assert "carries more than the state" in found.reason


def test_half_precision_is_walked(dense):
    found = planned(dense().bfloat16(), torch.randn(1, 5).bfloat16(), 1024)
    assert found.choice == "walk"
    assert "bfloat16" in found.reason


@pytest.mark.parametrize("steps", [10, 1024])
def test_the_solution_says_why(dense, steps):
    plan = schedule(1.0, steps=steps, span=(0.0, 1.0))
    solution = integrate(dense(8).float(), torch.randn(1, 8, dtype=torch.float32), plan, parallel="auto")
    assert solution.reason.startswith("Walked" if steps == 10 else "Solved in parallel")
    assert solution.reason.count(".") >= 1
    assert solution.reason.endswith(".")
    assert (solution.iterations is None) == (steps == 10)
    assert solution.converged


def test_asking_is_a_reason_too(dense, path):
    assert "was asked for" in integrate(dense(), torch.randn(2, 5), path(70), parallel="picard").reason


@pytest.mark.parametrize(
    "options",
    [{"parallel": "parareal"}, {"parallel": "picard", "window": 8}, {"parallel": "windowed", "window": 0}, {"tolerance": 0.0}, {"method": "alf"}],
    ids=str,
)
def test_options_that_cannot_work_are_refused(dense, path, options):
    with pytest.raises(ConfigError):
        integrate(dense(), torch.randn(2, 5), path(70), **options)


@pytest.mark.parametrize("parallel", ["newton", "picard", "windowed"])
def test_a_state_that_the_field_does_not_keep_is_refused(dense, path, parallel):
    with pytest.raises(ShapeError, match="the shape of x"):
        integrate(_Summing(dense()), torch.randn(2, 5), path(70), parallel=parallel)


class _Summing(CallableField):
    structure = Dense

    def __init__(self, field):
        super().__init__(lambda t, x: field.evaluate(x, field.weights(torch.zeros(()))).sum(-1, keepdim=True), parameters=tuple(field.parameters()))


def test_newton_without_a_structure_is_refused_with_a_way_out(path):
    with pytest.raises(ConfigError, match="parallel='picard'"):
        integrate(CallableField(lambda t, x: torch.sin(x)), torch.randn(2, 5), path(70), parallel="newton")


def test_half_precision_is_refused_where_parallel_is_asked_for(dense, path):
    with pytest.raises(DTypeError, match="bfloat16"):
        integrate(dense().bfloat16(), torch.randn(2, 5).bfloat16(), path(70), parallel="newton")


@pytest.mark.parametrize(("steps", "walk", "newton", "picard"), [(1024, 32, 4.6, 4.3), (4096, 128, 6.5, 8.0), (16384, 500, 10, 18)])
def test_estimates_for_an_accelerator_are_within_twice_what_was_measured_there(dense, steps, walk, newton, picard):
    # Milliseconds of forward passes on one H200. A tensor without data stands for one on the device.
    seconds, walked = estimates(dense(32).float(), find("euler"), torch.empty(1, 32, dtype=torch.float32, device="meta"), steps)
    for measured, estimated in ((walk, walked), (newton, seconds["newton"]), (picard, seconds["picard"])):
        assert measured / 2 < estimated * 1e3 < measured * 2
    assert seconds["newton"] < seconds["picard"]
