"""The parallel solve gives the states of the loop, whatever the cell, the interval and the length."""

import pytest
import torch
from toy_cells import ALL, SMOOTH, AnalyticTanh, Tanh, loop, make_cell

from pararnn import NewtonConfig, Status, newton_apply, sequential_apply, solve
from pararnn.solver.api import cell_problem, run
from pararnn.structures import Diagonal

INTERVALS = (1, 3, 16, "auto", "parallel", "T")


def as_config(interval, length, **options):
    return NewtonConfig(interval=max(1, length) if interval == "T" else interval, **options)


def inputs(batch, length, dtype=torch.float64, seed=0):
    return torch.randn(batch, length, 3, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("length", [1, 2, 7, 129], ids="T{}".format)
@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("name", ALL)
def test_states_equal_the_loop_in_float64(name, interval, length, tolerance):
    cell, x = make_cell(name), inputs(2, length)
    start = 0.3 * torch.randn(2, cell.state_size, dtype=cell.state_dtype)
    states = newton_apply(cell, x, as_config(interval, length), h0=start)
    torch.testing.assert_close(states, loop(cell, x, start), **tolerance["states"])


@pytest.mark.parametrize("dtype", [torch.float32], ids=str)
@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("name", SMOOTH)
def test_states_equal_the_loop_in_float32(name, interval, dtype, tolerance):
    cell, x = make_cell(name, dtype), inputs(3, 1000, dtype)
    states = newton_apply(cell, x, as_config(interval, 1000, backend="torch"))
    assert states.dtype == dtype
    torch.testing.assert_close(states, loop(cell, x), **tolerance["states"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_states_equal_the_loop_over_a_hundred_thousand_steps(dtype, tolerance):
    cell, x = AnalyticTanh(3, weight=0.95, dtype=dtype), inputs(1, 100_000, dtype)
    with torch.no_grad():
        states = newton_apply(cell, x)
        torch.testing.assert_close(states, loop(cell, x), **tolerance["states"])


@pytest.mark.parametrize("name", ALL)
def test_sequential_apply_is_the_loop(name):
    cell, x = make_cell(name), inputs(2, 20)
    torch.testing.assert_close(sequential_apply(cell, x), loop(cell, x), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("length", [4095, 4096, 4097], ids="T{}".format)
def test_lengths_around_a_power_of_two_are_nothing_special(length, tolerance):
    cell, x = make_cell("diagonal GRU"), inputs(1, length)
    with torch.no_grad():
        torch.testing.assert_close(newton_apply(cell, x, NewtonConfig(interval="parallel")), loop(cell, x), **tolerance["states"])


@pytest.mark.parametrize("interval", [1, 4, "auto"])
def test_inputs_may_have_any_strides(interval, tolerance):
    cell = make_cell("diagonal GRU")
    x = torch.randn(3, 60, 2, dtype=torch.float64).transpose(0, 2)
    assert not x.is_contiguous()
    torch.testing.assert_close(newton_apply(cell, x, NewtonConfig(interval=interval)), loop(cell, x), **tolerance["states"])
    expanded = x[:1].expand(4, -1, -1)
    torch.testing.assert_close(newton_apply(cell, expanded, NewtonConfig(interval=interval)), loop(cell, expanded), **tolerance["states"])


@pytest.mark.parametrize("interval", [1, 4, 25])
def test_equal_inputs_give_equal_bits(interval):
    cell, x = make_cell("slot LSTM"), inputs(2, 100)
    first, second = (newton_apply(cell, x, NewtonConfig(interval=interval)) for _ in range(2))
    assert torch.equal(first, second)


def test_inference_mode_gives_the_same_states(tolerance):
    cell, x = make_cell("diagonal GRU"), inputs(2, 100)
    with torch.inference_mode():
        states = newton_apply(cell, x, NewtonConfig(interval=4))
    assert not states.requires_grad
    torch.testing.assert_close(states, loop(cell, x), **tolerance["states"])


def test_nothing_is_written_into_the_arguments():
    cell, x = make_cell("diagonal GRU"), inputs(2, 100)
    start, guess = torch.randn(2, 4, dtype=torch.float64), torch.randn(2, 100, 4, dtype=torch.float64)
    kept = [tensor.clone() for tensor in (x, start, guess, *cell.parameters())]
    newton_apply(cell, x, NewtonConfig(interval=4), h0=start, guess=guess).sum().backward()
    assert all(torch.equal(now, then) for now, then in zip((x, start, guess, *cell.parameters()), kept, strict=True))


def test_solve_takes_a_step_function_and_no_cell(tolerance):
    drive, initial = inputs(2, 50), torch.zeros(2, 3, dtype=torch.float64)
    result = solve(lambda state, now: torch.tanh(0.5 * state + now), Diagonal, drive, initial, config=NewtonConfig(interval=5))
    torch.testing.assert_close(result.raise_for_status().states, loop(Tanh(3, weight=0.5), drive), **tolerance["states"])
    assert result.status is Status.CONVERGED
    assert result.converged.tolist() == [True, True]
    assert torch.equal(result.final, result.states[:, -1])


def test_a_linear_cell_is_solved_by_one_scan():
    cell, x = make_cell("complex pole"), inputs(2, 100)
    result = run(cell_problem(cell, x, NewtonConfig()), NewtonConfig())
    assert (result.iterations, result.status) == (1, Status.CONVERGED)
    assert "linear" in result.plan.explain()


def test_a_start_outside_the_state_bounds_is_kept(tolerance):
    cell, x = Tanh(3, weight=0.9), inputs(2, 64)
    start = torch.tensor([[5.0, -7.0, 0.5], [0.0, 3.0, -2.0]], dtype=torch.float64)
    for interval in (1, 4):
        states = newton_apply(cell, x, NewtonConfig(interval=interval), h0=start)
        torch.testing.assert_close(states, loop(cell, x, start), **tolerance["states"])
