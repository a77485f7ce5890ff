from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pararnn_cola import COLA, CoverageError, EProp, Network, Readout, SnAp1
from pararnn_cola.experimental import LSTMLayer


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_states_and_gradients_equal_those_of_lstmcell(bias):
    cell = nn.LSTMCell(3, 5, bias=bias, dtype=torch.float64)
    layer = LSTMLayer.from_torch(cell)
    inputs = torch.randn(7, 2, 3, dtype=torch.float64)
    theirs, ours = (torch.zeros(2, 5, dtype=torch.float64),) * 2, layer.zero_state(2)
    for u in inputs:
        theirs = cell(u, theirs)
        ours, _ = layer(u, ours)
        assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    theirs[0].square().sum().backward()
    ours[0].square().sum().backward()
    assert_close(layer.weight_hh.grad, cell.weight_hh.grad, rtol=1e-12, atol=1e-13)
    assert_close(layer.weight_ih.grad, cell.weight_ih.grad, rtol=1e-12, atol=1e-13)


def test_exact_signals_on_the_cell_give_the_exact_gradients_of_the_gates_before_it():
    torch.manual_seed(0)
    layer = LSTMLayer(3, 5, dtype=torch.float64)
    state, cells, moments, total = layer.zero_state(2), [], [], 0.0
    for u in torch.randn(6, 2, 3, dtype=torch.float64):
        moments.append(layer.observe(u, tuple(part.detach() for part in state))[1])
        state, c = layer(u, state)
        c.retain_grad()
        cells.append(c)
        total = total + state[0].square().sum()
    total.backward()
    found = {name: torch.zeros_like(parameter) for name, parameter in layer.named_parameters()}
    with torch.no_grad():
        for moment, c in zip(moments, cells, strict=True):
            layer.add_gradients(found, c.grad, torch.zeros_like(c), moment, 1.0)
    # The first three blocks are i, f and g; the output gate acts past the cell.
    for name, parameter in layer.named_parameters():
        assert_close(found[name][:15], parameter.grad[:15], rtol=1e-12, atol=1e-13)


def test_its_leak_is_the_forget_gate_and_its_slope_that_of_the_output_by_the_cell():
    layer = LSTMLayer(3, 5, dtype=torch.float64)
    state = tuple(torch.randn(2, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    u = torch.randn(2, 3, dtype=torch.float64)
    (h, c), _ = layer(u, state)
    moment = layer.observe(u, state)[1]
    (slope,) = torch.autograd.grad(h.sum(), c, retain_graph=True)
    (leak,) = torch.autograd.grad(c.sum(), state[1])
    assert_close(moment.slope, slope, rtol=1e-12, atol=1e-13)
    assert_close(moment.leak, leak, rtol=1e-12, atol=1e-13)


def test_cells_saturated_to_rounding_stop_nothing():
    layer = LSTMLayer(3, 5, dtype=torch.float64)
    _, moment = layer.observe(torch.randn(2, 3, dtype=torch.float64), (torch.zeros(2, 5).double(), torch.full((2, 5), 1e3).double()))
    moment = moment._replace(slope=torch.zeros_like(moment.slope))
    assert bool(layer.signal_to_input(torch.zeros(2, 5, dtype=torch.float64), moment).isfinite().all())


@pytest.mark.parametrize("rule", [SnAp1, EProp], ids=lambda rule: rule.__name__)
def test_rules_that_follow_units_refuse_it_and_name_rules_that_do_not(rule):
    network = Network(LSTMLayer(3, 5), Readout(5, 2))
    with pytest.raises(CoverageError, match=r"LSTMLayer.*weight_hh.*TBPTT1.*BPTT"):
        rule(network)
    COLA(network)
