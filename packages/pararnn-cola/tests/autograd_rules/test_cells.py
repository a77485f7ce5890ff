"""Cells of the core as layers."""

from typing import NamedTuple

import pytest
import torch
from torch import nn

from pararnn import ParaRNN
from pararnn.errors import CellError, ShapeError
from pararnn.structures import Diagonal
from pararnn_cola import BPTT, COLA, RTRL, TBPTT, TBPTT1, UORO, CellLayer, CoverageError, Network, Readout, RNNLayer


class GatedDrive(NamedTuple):
    keep: torch.Tensor
    candidate: torch.Tensor
    share: torch.Tensor


class Gated(nn.Module):
    """A cell with a leaf that does not run along the sequence, and an output that is not its state."""

    structure = Diagonal

    def __init__(self, input_size=3, state_size=4, output_size=2):
        super().__init__()
        self.state_size = state_size
        self.feed = nn.Linear(input_size, 2 * state_size)
        self.share = nn.Parameter(torch.linspace(-1, 1, state_size))
        self.shown = nn.Linear(state_size, output_size)

    def initial_state(self, batch):
        return self.share.new_zeros(batch, self.state_size)

    def drive(self, x):
        keep, candidate = self.feed(x).chunk(2, -1)
        return GatedDrive(torch.sigmoid(keep), candidate, self.share)

    def step(self, state, drive):
        return drive.keep * state + (1 - drive.keep) * torch.tanh(drive.candidate + drive.share * state)

    def readout(self, states):
        return torch.tanh(self.shown(states))


@pytest.fixture
def gated():
    torch.manual_seed(0)
    return Network(CellLayer(Gated()), Readout(2, 2, generator=torch.Generator().manual_seed(0)))


RULES = {"BPTT": BPTT, "TBPTT": lambda network, **options: TBPTT(network, 2, 30, **options), "RTRL": RTRL}


def check(net, steps, rule, through):
    """`.grad` after `rule` equals autograd of `through(x)`, the outputs of the whole sequence, for plain steps."""
    learner = rule(net, update="accumulate")
    for step in steps:
        learner.step(step.u, step.y)
    learner.flush()
    total = (through(torch.stack([step.u for step in steps], 1)) - torch.stack([step.y for step in steps], 1)).square().mean(-1).mean(0).sum()
    named = dict(net.named_parameters())
    for name, expected in zip(named, torch.autograd.grad(total, list(named.values())), strict=True):
        assert expected.abs().max() > 0
        torch.testing.assert_close(named[name].grad, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_cell_whose_output_is_not_its_state_has_exact_gradients(rule, gated, stream):
    layer = gated.layers[0]
    check(gated, stream(5), rule, lambda x: gated.readout(ParaRNN(layer.cell, solver="sequential")(x)))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_cells_stand_between_layers_of_this_package(rule, stream):
    torch.manual_seed(1)
    draw = torch.Generator().manual_seed(2)
    below, cell, above = RNNLayer(3, 4, generator=draw), Gated(4, 3, 5), RNNLayer(5, 3, generator=draw)
    net = Network([below, CellLayer(cell), above], Readout(3, 2, generator=draw))
    check(net, stream(5), rule, lambda x: net.readout(ParaRNN([below, cell, above], solver="sequential")(x)))


def test_a_layer_of_this_package_is_a_cell_too_and_both_ways_agree(network, stream, feed, gradients, agree):
    plain, wrapped, steps = network(), network(), stream(6, kind="ragged")
    other = Network(CellLayer(wrapped.layers[0]), wrapped.readout)
    feed(BPTT(plain), steps).flush()
    feed(BPTT(other), steps).flush()
    for mine, expected in zip(other.parameters(), gradients(plain).values(), strict=True):
        torch.testing.assert_close(mine.grad, expected, rtol=0, atol=1e-12)


def test_the_state_is_the_cells_own_where_the_readout_gives_it_back(network, gated):
    assert len(CellLayer(network().layers[0]).zero_state(2)) == 1
    output, state = gated.layers[0].zero_state(3)
    assert (tuple(output.shape), tuple(state.shape)) == ((3, 2), (3, 4))
    torch.testing.assert_close(output, gated.layers[0].cell.readout(state).detach())


@pytest.mark.parametrize("rule", [BPTT, RTRL], ids=["BPTT", "RTRL"])
@pytest.mark.parametrize("gate_mix", ["input", "diag_h"])
def test_paracfc_learns_as_its_samples_come(rule, gate_mix, stream):
    cells = pytest.importorskip("pararnn_cfc")
    torch.manual_seed(0)
    cell = cells.ParaCfC(3, 4, gate_mix=gate_mix)
    net = Network(CellLayer(cell), Readout(4, 2, generator=torch.Generator().manual_seed(0)))
    steps = [type(step)(torch.cat([step.u[:, :2], step.u[:, 2:].abs()], 1), step.y) for step in stream(5)]
    check(net, steps, rule, lambda x: net.readout(ParaRNN(cell, solver="sequential")(x)))


def test_uoro_estimates_the_influence_in_a_cell(gated, stream, feed):
    steps = stream(3, batch=2)
    feed(learner := UORO(gated, update="accumulate"), steps)
    assert all(parameter.grad.isfinite().all() and parameter.grad.abs().sum() > 0 for parameter in gated.parameters())
    assert learner.factors[0].shape == (2, 6)


@pytest.mark.parametrize("rule", [COLA, TBPTT1], ids=["COLA", "TBPTT1"])
def test_rules_in_closed_form_refuse_a_cell(rule, gated):
    with pytest.raises(CoverageError, match=r"CellLayer.*no formula.*cell\.share.*BPTT, TBPTT, RTRL, UORO"):
        rule(gated)


def test_near_criticality_refuses_a_cell(gated):
    with pytest.raises(CoverageError, match="Gated has no single recurrent matrix"):
        gated.layers[0].operator_norm()


def test_what_is_no_cell_is_refused():
    with pytest.raises(CellError, match="lacks structure"):
        CellLayer(nn.Linear(2, 2))
    wrong = Gated()
    wrong.structure = "Diagonal"
    with pytest.raises(CellError, match="structure is 'Diagonal'"):
        CellLayer(wrong)


def test_an_ensemble_of_cells_is_refused(gated):
    with pytest.raises(ShapeError, match="ensembles need layers"):
        gated.layers[0].zero_state(2, 3)
