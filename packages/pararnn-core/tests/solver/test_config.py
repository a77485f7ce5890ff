"""Options are validated when they are written down, and do what they say."""

import dataclasses

import pytest
import torch
from toy_cells import AnalyticTanh, DiagonalGRU, Tanh, loop

from pararnn import CellError, ConfigError, NewtonConfig
from pararnn.solver.api import cell_problem, run


def inputs(length=200):
    return torch.randn(2, length, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def solved(cell, x, **options):
    config = NewtonConfig(**options)
    with torch.no_grad():
        return run(cell_problem(cell, x, config), config)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("interval", 0),
        ("interval", -3),
        ("interval", 2.0),
        ("interval", True),
        ("interval", "fast"),
        ("max_iters", 0),
        ("max_iters", -1),
        ("max_iters", 1.5),
        ("newton_iters_by_t", {0: 3}),
        ("newton_iters_by_t", {16: 0}),
        ("atol", -1e-3),
        ("atol", float("nan")),
        ("rtol", float("inf")),
        ("rtol", "small"),
        ("on_stall", "ignore"),
        ("jacobian", "exact"),
        ("derivatives", 2),
    ],
    ids=str,
)
def test_a_value_that_cannot_work_is_refused_with_its_name(option, value):
    with pytest.raises(ConfigError, match=option):
        NewtonConfig(**{option: value})


def test_two_budgets_at_once_are_refused():
    with pytest.raises(ConfigError, match="give one of them"):
        NewtonConfig(max_iters=3, newton_iters_by_t={1: 3})


def test_a_config_is_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        NewtonConfig().interval = 3
    with pytest.raises(TypeError):
        NewtonConfig(3)


def test_the_budget_of_the_largest_length_not_above_counts():
    config = NewtonConfig(newton_iters_by_t={1: 3, 64: 5, 4096: 9})
    assert [config.budget(length) for length in (1, 63, 64, 4095, 5000)] == [3, 3, 5, 5, 9]
    assert NewtonConfig(newton_iters_by_t={64: 5}).budget(10) is None
    assert NewtonConfig().budget(10) is None


def test_tolerances_follow_the_dtype_unless_given():
    assert NewtonConfig().tolerances(torch.float64) < NewtonConfig().tolerances(torch.float32)
    assert NewtonConfig().tolerances(torch.complex128) == NewtonConfig().tolerances(torch.float64)
    assert NewtonConfig(atol=0.5).tolerances(torch.float32) == (0.5, NewtonConfig().tolerances(torch.float32)[1])


@pytest.mark.parametrize("interval", [1, 8])
def test_max_iters_is_a_hard_limit_and_the_answer_stays_right(interval, tolerance):
    torch.manual_seed(0)
    cell, x = DiagonalGRU(3, 4, scale=1.5), inputs()
    result = solved(cell, x, interval=interval, max_iters=1)
    torch.testing.assert_close(result.states, loop(cell, x), **tolerance["states"])
    assert result.walked or result.iterations > 1


@pytest.mark.parametrize("budget", [1, 2, 50])
def test_a_first_budget_is_never_a_promise(budget, tolerance):
    torch.manual_seed(0)
    cell, x = DiagonalGRU(3, 4, scale=1.5), inputs()
    result = solved(cell, x, interval=4, newton_iters_by_t={1: budget})
    torch.testing.assert_close(result.states, loop(cell, x), **tolerance["states"])


def test_a_looser_tolerance_takes_fewer_iterations_and_keeps_to_itself():
    torch.manual_seed(0)
    cell, x = DiagonalGRU(3, 4, scale=1.5), inputs()
    loose, tight = solved(cell, x, interval=4, atol=1e-3, rtol=0.0), solved(cell, x, interval=4)
    assert loose.iterations < tight.iterations
    assert (loose.states - loop(cell, x)).abs().max() <= 1e-3


def test_the_analytic_jacobian_is_used_ignored_or_demanded(tolerance):
    cell, x = AnalyticTanh(3), inputs()
    calls = []
    own = cell.jacobian
    cell.jacobian = lambda state, drive: (calls.append(1), own(state, drive))[1]
    cell.step = cell.step
    for choice, used in (("auto", True), ("analytic", True), ("autograd", False)):
        calls.clear()
        result = solved(cell, x, interval=4, jacobian=choice)
        assert bool(calls) == used
        torch.testing.assert_close(result.states, loop(cell, x), **tolerance["states"])


def test_an_analytic_jacobian_that_is_not_there_cannot_be_demanded():
    with pytest.raises(CellError, match="no analytic Jacobian"):
        solved(Tanh(3), inputs(), jacobian="analytic")


@pytest.mark.parametrize("project", [True, False])
def test_projection_changes_the_path_and_not_the_answer(project, tolerance):
    torch.manual_seed(0)
    cell, x = Tanh(3, weight=1.5, input_weight=0.1), inputs(500)
    torch.testing.assert_close(solved(cell, x, interval=4, project=project).states, loop(cell, x), **tolerance["states"])
