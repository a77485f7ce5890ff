"""Derivatives of derivatives are exact where they were asked for, and refused where not; never silently incomplete."""

import pytest
import torch
from toy_cells import DenseRNN, DiagonalGRU, Tanh, loop, make_cell, packed_loop, weighted_sum

from pararnn import DifferentiationError, NewtonConfig, newton_apply, sequential_apply

CELLS = ("tanh", "analytic tanh", "diagonal GRU", "slot LSTM", "dense RNN", "complex sine")


def inputs(length=20, seed=0):
    return torch.randn(2, length, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def penalty(states, sources):
    """A loss that holds first derivatives, as a gradient penalty does."""
    first = torch.autograd.grad(weighted_sum(states), sources, create_graph=True)
    return sum((gradient.abs() ** 2).sum() for gradient in first)


def relative_error(ours, truth):
    return max(float((left - right).abs().max() / right.abs().max()) for left, right in zip(ours, truth, strict=True))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("interval", [1, 4, "auto", 30])
@pytest.mark.parametrize("name", CELLS)
def test_second_derivatives_that_were_asked_for_equal_the_loop(name, interval):
    cell, x = make_cell(name), inputs(30)
    start = (0.3 * torch.randn(2, cell.state_size, dtype=cell.state_dtype)).requires_grad_()
    sources = (x, start, *cell.parameters())
    config = NewtonConfig(interval=interval, derivatives="twice")
    ours = torch.autograd.grad(penalty(newton_apply(cell, x, config, h0=start), sources), sources)
    assert relative_error(ours, torch.autograd.grad(penalty(loop(cell, x, start), sources), sources)) <= 1e-9


def test_second_derivatives_of_packed_sequences_equal_the_loop():
    cell, x, offsets = DiagonalGRU(3, 4), inputs(40)[:1].detach().requires_grad_(), [0, 7, 7, 30, 40]
    start = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    sources = (x, start, *cell.parameters())
    config = NewtonConfig(interval=4, derivatives="twice")
    ours = torch.autograd.grad(penalty(newton_apply(cell, x, config, h0=start, cu_seqlens=torch.tensor(offsets)), sources), sources)
    assert relative_error(ours, torch.autograd.grad(penalty(packed_loop(cell, x, offsets, start), sources), sources)) <= 1e-9


def test_finite_differences_of_the_gradient_agree():
    cell = Tanh(2, weight=0.8)
    x, start = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((1, 8, 2), (1, 2)))
    config = NewtonConfig(interval=3, derivatives="twice")
    assert torch.autograd.gradgradcheck(lambda x, start: newton_apply(cell, x, config, h0=start), (x, start))


def test_the_first_gradient_with_a_graph_equals_the_one_without():
    cell, x = DiagonalGRU(3, 4), inputs()
    for derivatives in ("once", "twice"):
        states = newton_apply(cell, x, NewtonConfig(interval=4, derivatives=derivatives))
        (kept,) = torch.autograd.grad(weighted_sum(states), x, create_graph=True)
        (plain,) = torch.autograd.grad(weighted_sum(loop(cell, x)), x)
        torch.testing.assert_close(kept, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("interval", [1, 4, "parallel"])
@pytest.mark.parametrize("source", ["x", "weight", "mixed"])
def test_a_second_derivative_that_was_not_asked_for_is_refused(source, interval):
    cell, x = DiagonalGRU(3, 4), inputs()
    first, second = {"x": (x, x), "weight": (cell.U, cell.U), "mixed": (x, cell.U)}[source]
    (gradient,) = torch.autograd.grad(weighted_sum(newton_apply(cell, x, NewtonConfig(interval=interval))), first, create_graph=True)
    with pytest.raises(DifferentiationError, match="derivatives='twice'"):
        torch.autograd.grad(gradient.square().sum(), second)


def test_a_second_derivative_by_the_initial_state_alone_is_refused_or_right():
    cell, x = DiagonalGRU(3, 4).requires_grad_(False), inputs().detach()
    start = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(weighted_sum(newton_apply(cell, x, NewtonConfig(interval=4), h0=start)), start, create_graph=True)
    with pytest.raises(DifferentiationError):
        torch.autograd.grad(gradient.square().sum(), start)


@pytest.mark.parametrize("name", CELLS)
def test_a_third_derivative_is_refused(name):
    cell, x = make_cell(name), inputs()
    states = newton_apply(cell, x, NewtonConfig(interval=4, derivatives="twice"))
    (first,) = torch.autograd.grad(weighted_sum(states), x, create_graph=True)
    (second,) = torch.autograd.grad((first.abs() ** 2).sum(), x, create_graph=True)
    with pytest.raises(DifferentiationError):
        torch.autograd.grad((second.abs() ** 2).sum(), x)


def test_a_coarse_jacobian_refuses_second_derivatives():
    cell, x = make_cell("quasi RNN"), inputs()
    for derivatives in ("once", "twice"):
        states = newton_apply(cell, x, NewtonConfig(interval=4, derivatives=derivatives))
        (first,) = torch.autograd.grad(weighted_sum(states), x, create_graph=True)
        with pytest.raises(DifferentiationError, match="solver='sequential'"):
            torch.autograd.grad(first.square().sum(), x)


def test_linear_cells_and_walks_can_be_differentiated_to_any_order():
    pole, x = make_cell("complex pole"), inputs()
    poles = list(pole.parameters())
    ours, truth = (torch.autograd.grad(penalty(states, poles), poles) for states in (newton_apply(pole, x), loop(pole, x)))
    assert relative_error(ours, truth) <= 1e-9
    mixing = DenseRNN(3, 4)
    ours, truth = (torch.autograd.grad(penalty(states, (x, mixing.U)), (x, mixing.U)) for states in (sequential_apply(mixing, x), loop(mixing, x)))
    assert relative_error(ours, truth) <= 1e-12


def test_a_hessian_vector_product_of_a_training_loss_is_exact():
    cell, x = DiagonalGRU(3, 4), inputs().detach()
    direction = [torch.randn_like(weight) for weight in cell.parameters()]

    def product(states):
        first = torch.autograd.grad(states.square().sum(), list(cell.parameters()), create_graph=True)
        return torch.autograd.grad(sum((left * right).sum() for left, right in zip(first, direction, strict=True)), list(cell.parameters()))

    config = NewtonConfig(interval=4, derivatives="twice")
    assert relative_error(product(newton_apply(cell, x, config)), product(loop(cell, x))) <= 1e-9
