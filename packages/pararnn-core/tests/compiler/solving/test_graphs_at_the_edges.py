"""What a graph makes of inputs at fault and of nothing to solve: the same as a solve outside of graphs."""

from typing import NamedTuple

import pytest
import torch
from solved_gates import sources
from torch import Tensor
from toy_cells import Tanh

from pararnn import InputError, ParaRNN


class Parts(NamedTuple):
    """A leaf that runs along the sequence and one that does not."""

    inputs: Tensor
    weight: Tensor


class Named(Tanh):
    """The leaves of its drive have names."""

    def drive(self, x):
        return Parts(x, torch.full((self.state_size,), self.input_weight, dtype=x.dtype))

    def step(self, state, drive):
        return torch.tanh(0.5 * state + drive[1] * drive[0])


class Unnamed(Named):
    """They have none."""

    def drive(self, x):
        return tuple(super().drive(x))


class Squares(Tanh):
    """Runs into infinity."""

    state_bounds = None

    def step(self, state, drive):
        return state * state + drive


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def graph_of(layer, **options):
    return torch.compile(layer, fullgraph=True, backend="aot_eager", **options)


def said(layer, *arguments):
    """The text of the `InputError` that it raises."""
    with pytest.raises(InputError) as caught:
        layer(*arguments)
    return str(caught.value)


KINDS = [(Tanh, "leaf 0 of the drive"), (Named, "the drive's inputs"), (Unnamed, "leaf 0 of the drive")]


@pytest.mark.parametrize(("kind", "culprit"), KINDS, ids=["one tensor", "named", "tuple"])
def test_inputs_that_are_not_finite_raise_in_a_graph_what_they_raise_outside(engine, kind, culprit):
    layer, x, h0 = ParaRNN(kind(4)), torch.randn(2, 11, 4, dtype=torch.float64), torch.zeros(2, 4, dtype=torch.float64)
    graph = graph_of(layer)
    assert graph(x, h0).isfinite().all()
    h0[0] = torch.nan
    assert said(graph, x, h0) == said(layer, x, h0)
    assert "the initial state is not" in said(graph, x, h0)
    x[1, 7] = torch.nan
    assert said(graph, x, h0) == said(layer, x, h0)
    assert f"{culprit} is not (first at batch 1, step 7: nan)" in said(graph, x, h0)
    assert engine.solves == 5


def test_an_untimed_leaf_that_is_not_finite_raises_in_a_graph_what_it_raises_outside(engine):
    layer, x = ParaRNN(Named(4, input_weight=float("nan"))), torch.randn(2, 11, 4, dtype=torch.float64)
    assert said(graph_of(layer), x) == said(layer, x)
    assert "the drive's weight is not" in said(layer, x)


def test_a_recurrence_that_overflows_from_finite_inputs_raises_nothing_in_a_graph(engine):
    states = graph_of(ParaRNN(Squares(4)))(torch.ones(1, 30, 4, dtype=torch.float64))
    assert not states.isfinite().all()
    assert engine.solves == 1


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("shape", [(3, 0), (0, 9), (0, 0)], ids=str)
def test_nothing_to_solve_gives_in_a_graph_what_it_gives_outside(engine, shape, dynamic):
    cell, some, _ = sources()
    layer = ParaRNN(cell, return_hidden=True)
    graph = graph_of(layer, dynamic=dynamic)
    for rows, length in ((3, 9), shape):
        x = torch.randn(rows, length, some.shape[2], dtype=some.dtype, requires_grad=True)
        h0 = torch.randn(rows, cell.state_size, dtype=some.dtype, requires_grad=True)
        found = []
        for solve in (graph, layer):
            output, (final,) = solve(x, h0)
            loss = output.sum() + final.square().sum()
            found.append((output, final, *torch.autograd.grad(loss, [x, h0, *cell.parameters()], allow_unused=True, materialize_grads=True)))
        torch.testing.assert_close(*found)
    assert output.shape == (*shape, cell.state_size)
    # Once, where there was something.
    assert engine.solves == 1


def test_nothing_to_solve_in_a_graph_made_no_sweep(engine):
    cell, x, _ = sources()
    layer = ParaRNN(cell)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def solved(x):
        return layer.solve(x)[1][0]

    assert solved(x.detach()[:, :0]).iterations == 0
    assert engine.solves == 0
