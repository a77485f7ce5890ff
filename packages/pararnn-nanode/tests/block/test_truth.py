"""Where it is proved what a block can and cannot do."""

import math

import pytest
import torch

from pararnn_nanode import (
    NANODE,
    AppendTimeField,
    BucketPath,
    CallableField,
    ConstantPath,
    ConvField,
    DenseField,
    DiagonalField,
    PathWarning,
    PolyPath,
    TrigPath,
)

TARGET = torch.diag(torch.tensor([-2.0, -0.5], dtype=torch.float64))
ALL_METHODS = ["euler", "midpoint", "heun", "rk4", "rk4_38", "reversible_heun", "alf", "dopri5"]


def flow(block):
    """The matrix by which a linear block of two channels multiplies states."""
    return block(torch.eye(2)).T


@pytest.fixture
def two_pieces():
    """Half a turn, then a stretch: `exp(S / 2) exp(R / 2) = diag(-2, -1/2)`."""
    path = BucketPath((2, 2), 2)
    turn = 2 * math.pi * torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    stretch = 2 * torch.diag(torch.tensor([math.log(2), -math.log(2)]))
    with torch.no_grad():
        path.coefficients.copy_(torch.stack([turn, stretch]))
    return DenseField(2, path, activation=None)


def test_two_pieces_reach_a_map_without_a_real_logarithm(two_pieces):
    first, second = two_pieces.path.coefficients.detach()
    exact = torch.linalg.matrix_exp(second / 2) @ torch.linalg.matrix_exp(first / 2)
    torch.testing.assert_close(exact, TARGET, rtol=0, atol=1e-14)
    for method, steps, error in (("rk4", 1000, 1e-9), ("dopri5", 10, 1e-5)):
        torch.testing.assert_close(flow(NANODE(two_pieces, steps, method=method)), TARGET, rtol=0, atol=error)


def test_an_adaptive_method_reaches_it_to_its_tolerance(two_pieces):
    block = NANODE(two_pieces, method="dopri5", rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(flow(block), TARGET, rtol=0, atol=1e-10)


def test_no_autonomous_map_comes_closer_than_three_quarters():
    # The distance of real matrix exponentials to the target has the infimum 3/4, which none attains.
    weight = torch.tensor([[-0.1, -3.0], [3.0, 0.1]], requires_grad=True)
    optimiser = torch.optim.LBFGS([weight], max_iter=400, line_search_fn="strong_wolfe", tolerance_change=1e-12)

    def distance():
        optimiser.zero_grad()
        value = (torch.linalg.matrix_exp(weight) - TARGET).square().sum()
        value.backward()
        return value

    optimiser.step(distance)
    assert 0.75 < float(distance().detach().sqrt()) < 0.78


@pytest.mark.parametrize("method", ALL_METHODS)
def test_weights_of_one_column_are_constant_weights(method):
    constant = ConstantPath((3, 3))
    x = torch.randn(5, 3)
    expected = NANODE(DenseField(3, constant), method=method)(x)
    for path in (TrigPath((3, 3), 0), PolyPath((3, 3), 0), BucketPath((3, 3), 1)):
        path.load_state_dict(constant.state_dict())
        assert torch.equal(NANODE(DenseField(3, path), method=method)(x), expected)


@pytest.mark.parametrize("method", ALL_METHODS)
def test_a_time_that_is_appended_with_no_weight_changes_nothing(method):
    constant, appended = ConstantPath((3, 3)), ConstantPath((3, 4))
    with torch.no_grad():
        appended.coefficients.copy_(torch.cat([constant.coefficients, torch.zeros(1, 3, 1)], -1))
    x = torch.randn(5, 3)
    torch.testing.assert_close(
        NANODE(AppendTimeField(3, appended), method=method)(x), NANODE(DenseField(3, constant), method=method)(x), rtol=0, atol=1e-14
    )


def test_one_step_is_one_residual_layer():
    field = DenseField(3, TrigPath((3, 3), 2), bias=TrigPath(3, 1, gain=1.0))
    x = torch.randn(5, 3)
    with pytest.warns(PathWarning, match="can tell 1 apart"):
        block = NANODE(field, 1)
    assert torch.equal(block(x), x + torch.tanh(x @ field.path.at(0.0).T + field.bias.at(0.0)))


def results(block, shape, t=None):
    """States of a block from one and the same start, and all gradients of a loss of them."""
    x = torch.linspace(-1, 1, math.prod(shape)).view(shape).requires_grad_()
    states = block(x, t)
    return (states, *torch.autograd.grad(states.square().sum(), (x, *block.parameters())))


@pytest.mark.parametrize("gradient", ["checkpoint", "reversible"])
@pytest.mark.parametrize("method", ["reversible_heun", "alf"])
def test_gradients_that_save_memory_are_those_of_backprop(method, gradient):
    field = DenseField(3, TrigPath((3, 3), 2), bias=TrigPath(3, 1, gain=1.0))
    expected = results(NANODE(field, 50, method=method), (2, 3), [0.4, 1.0])
    for one, other in zip(results(NANODE(field, 50, method=method, gradient=gradient), (2, 3), [0.4, 1.0]), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def dense():
    return DenseField(3, TrigPath((3, 3), 2), bias=TrigPath(3, 1, gain=1.0)), (2, 3)


def diagonal():
    return DiagonalField(3, TrigPath(3, 2, gain=1.0), bias=TrigPath(3, 1, gain=1.0)), (2, 3)


def convolution():
    return ConvField(3, 3, TrigPath((3, 3, 3), 2), bias=TrigPath(3, 1, gain=1.0)), (2, 3, 5)


def function():
    return CallableField(lambda t, x: torch.cos(3 * t) * torch.sin(x)), (2, 3)


@pytest.mark.parametrize(
    ("make", "parallel"),
    [
        *((make, parallel) for make in (dense, diagonal, convolution, function) for parallel in ("picard", "windowed")),
        (dense, "newton"),
        (diagonal, "newton"),
    ],
)
@pytest.mark.parametrize("method", ["euler", "rk4"])
def test_a_solve_in_parallel_gives_the_states_and_gradients_of_the_walk(make, parallel, method):
    field, shape = make()
    together = NANODE(field, 64, method=method, parallel=parallel, window=16 if parallel == "windowed" else None)
    expected = results(NANODE(field, 64, method=method), shape, [0.25, 1.0])
    for one, other in zip(results(together, shape, [0.25, 1.0]), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)
    assert together.solve(torch.ones(shape)).converged
