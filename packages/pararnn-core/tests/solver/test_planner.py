"""The plan fits the shape, honours what the user asked for, and says why."""

import pytest
import torch
from toy_cells import AnalyticTanh, DenseRNN, DiagonalGRU, Tanh, make_cell

from pararnn import NewtonConfig
from pararnn.solver.api import cell_problem
from pararnn.solver.planner import plan


def planned(cell, batch, length, channels=3, cu_seqlens=None, **options):
    config = NewtonConfig(**options)
    with torch.no_grad():
        return plan(cell_problem(cell, torch.zeros(batch, length, channels, dtype=torch.float64), config, cu_seqlens=cu_seqlens), config)


@pytest.mark.parametrize("interval", [1, 3, 16, 100])
def test_an_interval_that_was_asked_for_is_taken(interval):
    result = planned(Tanh(3), 2, 100, interval=interval)
    assert result.interval == interval
    assert result.walks == (interval == 100)
    assert f"interval={interval} was asked for" in result.explain()


def test_an_interval_longer_than_the_sequence_is_the_walk():
    result = planned(Tanh(3), 2, 100, interval=5000)
    assert result.interval == 100
    assert result.walks


def test_few_lanes_over_a_long_sequence_are_solved_in_parallel():
    result = planned(AnalyticTanh(3), 1, 16384)
    assert not result.walks
    assert 4 <= result.interval <= 2048
    assert result.parallel < result.walk


def test_a_short_sequence_is_walked():
    assert planned(Tanh(3), 2, 8).walks


def test_a_large_dense_state_is_walked():
    assert planned(DenseRNN(3, 64), 64, 200).walks


@pytest.mark.parametrize("length", [8, 200])
def test_parallel_insists_on_a_parallel_solve_where_one_exists(length):
    assert not planned(DenseRNN(3, 64), 64, length, interval="parallel").walks


def test_a_parallel_solve_against_the_estimates_says_that_it_was_asked_for():
    result = planned(DenseRNN(3, 64), 64, 200, interval="parallel")
    assert result.parallel >= result.walk
    assert result.reason.startswith("a parallel solve was asked for (estimated at ")
    assert result.reason.endswith("would be quicker)")


def test_a_parallel_solve_that_is_the_quicker_way_says_so_whether_it_was_asked_for_or_not():
    chosen, asked = (planned(AnalyticTanh(3), 1, 16384, interval=interval) for interval in ("auto", "parallel"))
    assert chosen.parallel < chosen.walk
    assert chosen.reason == asked.reason
    assert "asked for" not in chosen.reason


def test_a_sequence_of_one_step_is_walked_whatever_was_asked():
    for interval in (1, 7, "auto", "parallel"):
        assert planned(Tanh(3), 2, 1, interval=interval).walks


def test_the_plan_of_a_pack_is_made_for_its_longest_sequence():
    result = planned(Tanh(3), 1, 1000, cu_seqlens=torch.tensor([0, 10, 710, 1000]), interval=5000)
    assert (result.length, result.interval) == (700, 700)


def test_a_neighbouring_length_gets_about_the_same_plan():
    plans = [planned(AnalyticTanh(3), 1, length) for length in (4095, 4096, 4097)]
    assert max(each.parallel for each in plans) <= 1.1 * min(each.parallel for each in plans)


def test_the_plan_can_be_read_and_printed():
    result = planned(DiagonalGRU(3, 4), 2, 4096)
    assert str(result) == result.explain()
    assert result.explain().startswith("Plan for 4096 steps of 8 lanes:")
    assert result.reason in result.explain()


def test_planning_runs_the_step_without_touching_gradients_or_random_numbers():
    cell, state = make_cell("slot LSTM"), torch.random.get_rng_state()
    planned(cell, 2, 200)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(weight.grad is None for weight in cell.parameters())
