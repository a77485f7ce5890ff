"""Convergence is always checked: what does not converge is walked and says so, what is infinite raises."""

import pytest
import torch

from pararnn.errors import DifferentiationError
from pararnn_nanode.depth import iteration
from pararnn_nanode.depth.blocks import Summed
from pararnn_nanode.depth.gradient import settle
from pararnn_nanode.depth.solve import integrate
from pararnn_nanode.errors import NonFiniteStateError
from pararnn_nanode.integrate import fixed


@pytest.mark.parametrize("parallel", ["newton", "picard", "windowed"])
def test_a_solve_that_does_not_converge_is_walked_and_says_so(dense, path, monkeypatch, parallel):
    monkeypatch.setattr(iteration, "PATIENCE", 1)
    monkeypatch.setattr(iteration, "PICARD_PATIENCE", 1)
    field, x = dense(), torch.randn(2, 5)
    solution = integrate(field, x, path(100), parallel=parallel)
    assert not solution.converged
    assert "did not converge" in solution.reason
    assert "Walked" in solution.reason
    torch.testing.assert_close(solution.x, fixed.integrate(field, x, path(100)).x, rtol=0, atol=0)


@pytest.mark.parametrize("parallel", ["newton", "picard", "windowed"])
@pytest.mark.parametrize("activation", ["tanh", None])
def test_large_weights_take_more_iterations_or_blocks_and_give_the_walk(dense, compare, path, activation, parallel):
    states, gradients, solution = compare(dense(scale=10.0, activation=activation), torch.randn(2, 5), path(300), parallel=parallel)
    size = float(solution.x.detach().abs().max())
    assert states < 1e-9 * size
    assert gradients < 1e-8


@pytest.mark.parametrize("parallel", ["newton", "picard", "windowed"])
def test_an_equation_that_runs_into_infinity_raises(dense, path, parallel):
    field = dense(scale=1e8, activation=None)
    with pytest.raises(NonFiniteStateError, match="no longer finite"):
        integrate(field, torch.randn(2, 5), path(100), parallel=parallel)


def test_a_tolerance_that_rounding_forbids_ends_in_a_walk(dense, path):
    field, x = dense(), torch.randn(2, 5)
    solution = integrate(field, x, path(64), parallel="newton", tolerance=1e-30)
    torch.testing.assert_close(solution.x, fixed.integrate(field, x, path(64)).x, rtol=0, atol=1e-13)


def test_a_loose_tolerance_saves_iterations(dense, path):
    field, x = dense(), torch.randn(2, 5)
    loose, tight = (integrate(field, x, path(200), parallel="picard", tolerance=tolerance) for tolerance in (1e-3, 1e-12))
    assert loose.iterations < tight.iterations
    assert float((loose.x - tight.x).detach().abs().max()) < 1e-3


def test_one_sample_that_is_hard_does_not_spoil_the_others(dense, compare, path):
    x = torch.cat((torch.zeros(1, 5), 100 * torch.ones(1, 5), 1e-3 * torch.ones(1, 5)))
    states, gradients, _ = compare(dense(scale=3.0), x, path(150), parallel="newton")
    assert states < 1e-9
    assert gradients < 1e-9


def test_costates_that_do_not_settle_raise():
    with pytest.raises(DifferentiationError, match="did not settle"):
        settle(lambda costate: 3 * costate.roll(1, 0), Summed(), torch.ones(300, 2))


def test_evaluations_are_counted(dense, path):
    field, x = dense(), torch.randn(2, 5)
    with torch.no_grad():
        solution = integrate(field, x, path(100), parallel="picard", method="heun")
    assert (solution.nfe - 2 * 15) // 200 == solution.iterations
