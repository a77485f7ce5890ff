"""States and gradients of compiled solves are those of the loop; second derivatives, and edits before backward, are refused."""

import pytest
import torch
from solved_gates import COMPILED, result_of, sources
from torch.utils.checkpoint import checkpoint
from toy_cells import loop, packed_loop, weighted_sum

from pararnn import DifferentiationError, newton_apply

OFFSETS = (0, 3, 3, 10, 11)


@pytest.mark.parametrize("length", [0, 1, 2, 11], ids="T{}".format)
def test_states_and_all_gradients_are_those_of_the_loop(engine, length, tolerance):
    cell, x, h0 = given = sources(length)
    states = newton_apply(cell, x, COMPILED, h0=h0)
    expected = loop(cell, x, h0) if length else x.new_zeros(2, 0, 3)
    torch.testing.assert_close(states, expected, **tolerance["states"])
    if length:
        ours, truth = (torch.autograd.grad(weighted_sum(found), given.all()) for found in (states, expected))
        torch.testing.assert_close(ours, truth, **tolerance["gradients"])
        assert (engine.solves, engine.backwards) == (1, 1)
    else:
        assert all(not gradient.any() for gradient in torch.autograd.grad(states.sum(), given.all()[:2], allow_unused=True) if gradient is not None)


def test_packed_sequences_are_solved_each_on_its_own(tolerance):
    cell, x, h0 = given = sources(batch=1, sequences=len(OFFSETS) - 1)
    result = result_of(cell, x, h0=h0, cu_seqlens=torch.tensor(OFFSETS))
    expected = packed_loop(cell, x, OFFSETS, h0)
    torch.testing.assert_close(result.states, expected, **tolerance["states"])
    torch.testing.assert_close(result.final, torch.stack((expected[0, 2], h0[1], expected[0, 9], expected[0, 10])), **tolerance["states"])
    ours, truth = (torch.autograd.grad(weighted_sum(states), given.all()) for states in (result.states, expected))
    torch.testing.assert_close(ours, truth, **tolerance["gradients"])
    assert result.converged.shape == (4,)


def test_final_states_carry_gradients_although_they_are_made_when_asked_for(tolerance):
    given = sources()
    result = result_of(given.cell, given.x, h0=given.h0)
    with torch.no_grad():
        final = result.final
    ours = torch.autograd.grad(final.square().sum(), given.all())
    truth = torch.autograd.grad(loop(given.cell, given.x, given.h0)[:, -1].square().sum(), given.all())
    torch.testing.assert_close(ours, truth, **tolerance["gradients"])


@pytest.mark.parametrize("wanted", ["x", "h0", "lift"])
def test_gradients_of_one_source_alone_are_those_of_the_loop(wanted, tolerance):
    given = sources()
    named = {"x": given.x, "h0": given.h0, "lift": given.cell.lift}
    for tensor in given.all():
        tensor.requires_grad_(tensor is named[wanted])
    ours, truth = (weighted_sum(states) for states in (newton_apply(given.cell, given.x, COMPILED, h0=given.h0), loop(given.cell, given.x, given.h0)))
    torch.testing.assert_close(torch.autograd.grad(ours, named[wanted]), torch.autograd.grad(truth, named[wanted]), **tolerance["gradients"])


def test_without_a_source_that_needs_gradients_the_states_need_none():
    cell, x, _ = sources()
    assert not newton_apply(cell.requires_grad_(False), x.detach(), COMPILED).requires_grad


def test_a_weight_edited_between_forward_and_backward_raises():
    cell, x, _ = sources()
    for weight in (cell.lift, cell.recurrent):
        states = newton_apply(cell, x, COMPILED)
        with torch.no_grad():
            weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            states.sum().backward()


def test_states_edited_before_backward_raise():
    cell, x, _ = sources()
    states = newton_apply(cell, x, COMPILED)
    total = states.sum()
    with torch.no_grad():
        states.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@pytest.mark.parametrize("first", ["x", "lift"])
@pytest.mark.parametrize("second", ["x", "lift", "recurrent", "weights of the sum"])
def test_a_second_derivative_is_refused_by_whatever_it_is_taken(first, second):
    cell, x, _ = sources()
    weights = torch.randn(2, 11, 3, dtype=torch.float64, requires_grad=True)
    named = {"x": x, "lift": cell.lift, "recurrent": cell.recurrent, "weights of the sum": weights}
    (gradient,) = torch.autograd.grad((newton_apply(cell, x, COMPILED) * weights).sum(), named[first], create_graph=True)
    with pytest.raises(DifferentiationError, match="derivatives='twice'"):
        torch.autograd.grad(gradient.sum(), named[second])


def test_a_graph_of_the_gradient_that_nobody_differentiates_is_fine(tolerance):
    cell, x, _ = sources()
    ours, truth = (
        torch.autograd.grad(weighted_sum(states), x, create_graph=graph)[0]
        for states, graph in ((newton_apply(cell, x, COMPILED), True), (loop(cell, x), False))
    )
    torch.testing.assert_close(ours.detach(), truth, **tolerance["gradients"])


def test_checkpointing_solves_again_and_gives_the_same_gradients(engine):
    cell, x, h0 = given = sources()
    plain = torch.autograd.grad(weighted_sum(newton_apply(cell, x, COMPILED, h0=h0)), given.all())
    again = checkpoint(lambda x, h0: newton_apply(cell, x, COMPILED, h0=h0), x, h0, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(weighted_sum(again), given.all()), plain, rtol=0, atol=0)
    assert engine.solves == 3
