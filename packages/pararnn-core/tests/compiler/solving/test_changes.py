"""Weights and attributes of the moment are the ones that count, and a solve keeps no cell alive."""

import gc
import weakref
from decimal import Decimal

import torch
from solved_gates import COMPILED, result_of, sources
from torch import nn
from toy_cells import Gate, Tanh, ToyCell, loop, weighted_sum

from pararnn import NewtonConfig, ParaRNN, newton_apply


def test_other_weights_by_functional_call_are_the_ones_that_count(tolerance):
    cell, x, _ = sources()
    layer, other = ParaRNN(cell, config=COMPILED), Gate(4, 3)
    weights = {f"layers.0.{name}": weight for name, weight in other.named_parameters()}
    states = torch.func.functional_call(layer, weights, (x,))
    torch.testing.assert_close(states, loop(other, x), **tolerance["states"])
    ours, truth = (torch.autograd.grad(weighted_sum(found), list(other.parameters())) for found in (states, loop(other, x)))
    torch.testing.assert_close(ours, truth, **tolerance["gradients"])


def test_a_replaced_parameter_is_the_one_that_counts(engine, tolerance):
    cell, x, _ = sources()
    newton_apply(cell, x, COMPILED)
    cell.lift = nn.Parameter(torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(newton_apply(cell, x, COMPILED), loop(cell, x), **tolerance["states"])


def test_a_plain_attribute_that_changes_is_seen(tolerance):
    cell, x = Tanh(4), torch.randn(2, 11, 4, dtype=torch.float64)
    newton_apply(cell, x, COMPILED)
    cell.input_weight = 0.25
    torch.testing.assert_close(newton_apply(cell, x, COMPILED), loop(cell, x), **tolerance["states"])


class Opaque(ToyCell):
    """Its step reads a number of which the compiler cannot tell whether it changed."""

    def __init__(self, state_size):
        super().__init__(state_size)
        self.gain = Decimal("0.5")

    def step(self, state, drive):
        return torch.tanh(float(self.gain) * state + drive)


def test_a_step_that_cannot_be_told_from_a_changed_one_is_traced_anew(engine, tolerance):
    cell, x = Opaque(3), torch.randn(1, 1100, 3, dtype=torch.float64)
    for gain in ("0.5", "0.25"):
        cell.gain = Decimal(gain)
        for config in (COMPILED, NewtonConfig()):
            torch.testing.assert_close(newton_apply(cell, x, config), loop(cell, x), **tolerance["states"])
    assert engine.solves == 4


def test_a_cell_and_its_states_are_not_kept_alive():
    cell, x, _ = sources()
    result = result_of(cell, x)
    watched = weakref.ref(cell), weakref.ref(result.states)
    del cell, result
    gc.collect()
    assert [reference() for reference in watched] == [None, None]
