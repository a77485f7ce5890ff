"""A guess changes the cost of a solve and never its answer."""

import pytest
import torch
from toy_cells import DiagonalGRU, loop, packed_loop

from pararnn import NewtonConfig, newton_apply
from pararnn.solver.api import cell_problem, run

# Compiled kernels begin from a guess of their own.
CONFIG = NewtonConfig(interval=8, backend="torch")


def inputs():
    return torch.randn(2, 800, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def cell():
    torch.manual_seed(0)
    return DiagonalGRU(3, 4, scale=1.5)


def test_states_of_the_last_training_step_save_iterations_and_give_the_same_answer(cell, tolerance):
    x = inputs()
    cold = run(cell_problem(cell, x, CONFIG), CONFIG)
    with torch.no_grad():
        cell.U.mul_(1 + 1e-4)
        warm = run(cell_problem(cell, x, CONFIG, guess=cold.states), CONFIG)
        again = run(cell_problem(cell, x, CONFIG), CONFIG)
    assert warm.iterations < again.iterations
    torch.testing.assert_close(warm.states, loop(cell, x), **tolerance["states"])


def test_the_answer_itself_as_a_guess_takes_one_iteration(cell):
    x = inputs()
    guess = loop(cell, x).detach()
    assert run(cell_problem(cell, x, CONFIG, guess=guess), CONFIG).iterations == 1


@pytest.mark.parametrize("guess", ["zeros", "noise", "huge", "nan", "inf"])
@pytest.mark.parametrize("interval", [1, 8, "auto"])
def test_a_useless_guess_changes_nothing_but_the_cost(cell, guess, interval, tolerance):
    x = inputs()[:, :200]
    states = torch.randn(2, 200, 4, dtype=torch.float64)
    states = {"zeros": 0 * states, "noise": states, "huge": 1e300 * states, "nan": states * float("nan"), "inf": states * float("inf")}[guess]
    config = NewtonConfig(interval=interval)
    torch.testing.assert_close(newton_apply(cell, x, config, guess=states), loop(cell, x), **tolerance["states"])


def test_no_gradient_flows_into_a_guess(cell):
    x = inputs()[:, :100]
    guess = torch.randn(2, 100, 4, dtype=torch.float64, requires_grad=True)
    newton_apply(cell, x, CONFIG, guess=guess).sum().backward()
    assert guess.grad is None
    (expected,) = torch.autograd.grad(loop(cell, x).sum(), cell.U)
    torch.testing.assert_close(cell.U.grad, expected, rtol=1e-9, atol=1e-9)


def test_packed_sequences_take_a_guess(cell, tolerance):
    x, offsets = inputs()[:1], [0, 300, 300, 800]
    guess = packed_loop(cell, x, offsets).detach()
    result = run(cell_problem(cell, x, CONFIG, cu_seqlens=torch.tensor(offsets), guess=guess), CONFIG)
    assert result.iterations == 1
    torch.testing.assert_close(result.states, guess, **tolerance["states"])


def test_a_cell_may_bring_its_own_guess(cell, tolerance):
    x = inputs()
    truth = loop(cell, x).detach()
    cell.guess = lambda drive, initial: truth
    result = run(cell_problem(cell, x, CONFIG), CONFIG)
    assert result.iterations == 1
    torch.testing.assert_close(result.states, truth, **tolerance["states"])
