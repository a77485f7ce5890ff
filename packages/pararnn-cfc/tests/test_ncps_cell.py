"""The cells, walked by a plain loop, against the cells of ncps; everything in float64."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from torch.nn.utils import prune

from pararnn.cell import check_cell
from pararnn.errors import CellError
from pararnn.structures.dense import Dense
from pararnn_cfc.mixed_memory import LSTMGates, MixedMemoryCell
from pararnn_cfc.ncps_cell import CfCCell
from pararnn_cfc.wired import WiredCfC

# The oracle is an extra of its own; without it the matrix sessions still run these tests.
ncps_torch = pytest.importorskip("ncps.torch")
ncps_wirings = pytest.importorskip("ncps.wirings")
NcpsCell = ncps_torch.CfCCell
NcpsWiredCell = ncps_torch.WiredCfCCell
AutoNCP = ncps_wirings.AutoNCP
FullyConnected = ncps_wirings.FullyConnected
Random = ncps_wirings.Random

MODES = ["default", "pure", "no_gate"]
WIRINGS = {"auto_ncp": lambda: AutoNCP(13, 3, seed=7), "fully_connected": lambda: FullyConnected(6), "random": lambda: Random(6, sparsity_level=0.5)}


def at(drive, time):
    return type(drive)(*(leaf[:, time] for leaf in drive))


def walk(cell, x, state=None):
    drive = cell.drive(x)
    state = cell.initial_state(x.shape[0]) if state is None else state
    states = []
    for time in range(x.shape[1]):
        state = cell.step(state, at(drive, time))
        states.append(state)
    return torch.stack(states, dim=1)


def walk_ncps(cell, features, elapsed, units):
    """One sequence at a time: ncps mixes up the gaps of a batch (test_ncps_differences.py)."""
    sequences = []
    for sequence, gaps in zip(features, elapsed, strict=True):
        state, states = torch.zeros(1, units).to(features), []
        for sample, gap in zip(sequence, gaps, strict=True):
            _, state = cell(sample[None], state, gap.squeeze())
            states.append(state)
        sequences.append(torch.cat(states))
    return torch.stack(sequences)


def irregular(batch, length, width, *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(batch, length, width, generator=generator, dtype=torch.float64)
    return features, 3 * torch.rand(batch, length, 1, generator=generator, dtype=torch.float64)


def perturb(module):
    """Move every weight off its initial value: biases and time constants start at zero or one, which hides mistakes."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn(parameter.shape).to(parameter))


def cells():
    torch.manual_seed(3)
    built = {f"{mode}-{layers}layers": CfCCell(2, 3, mode, backbone_units=4, backbone_layers=layers) for mode in MODES for layers in (0, 2)}
    built |= {f"wired-{mode}": WiredCfC(2, AutoNCP(6, 1), mode) for mode in MODES}
    built |= {f"mixed-{mode}": MixedMemoryCell(CfCCell(2, 3, mode, backbone_units=4), LSTMGates(2, 3)) for mode in MODES}
    built["mixed-wired"] = MixedMemoryCell(WiredCfC(2, FullyConnected(3)), LSTMGates(2, 3))
    for cell in built.values():
        perturb(cell.double())
    return built


CELLS = cells()


@pytest.fixture(params=CELLS, ids=str)
def cell(request):
    return CELLS[request.param]


@pytest.mark.parametrize("layers", [0, 1, 3], ids="{}layers".format)
@pytest.mark.parametrize("activation", ["lecun_tanh", "silu", "relu", "tanh", "gelu"])
@pytest.mark.parametrize("mode", MODES)
def test_a_walked_cell_gives_the_states_of_ncps(mode, activation, layers):
    reference = NcpsCell(3, 5, mode, activation, backbone_units=7, backbone_layers=layers).double()
    perturb(reference)
    cell = CfCCell(3, 5, mode, activation, backbone_units=7, backbone_layers=layers).double()
    cell.load_state_dict(reference.state_dict())
    features, elapsed = irregular(2, 9, 3)
    expected = walk_ncps(reference, features, elapsed, 5)
    torch.testing.assert_close(walk(cell, torch.cat([features, elapsed], -1)), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("wiring", WIRINGS.values(), ids=WIRINGS)
@pytest.mark.parametrize("mode", MODES)
def test_a_walked_wired_cell_gives_the_states_of_ncps(mode, wiring):
    reference = NcpsWiredCell(4, wiring(), mode).double()
    perturb(reference)
    cell = WiredCfC(4, wiring(), mode).double()
    cell.load_state_dict(reference.state_dict())
    features, elapsed = irregular(2, 9, 4)
    expected = walk_ncps(reference, features, elapsed, cell.state_size)
    torch.testing.assert_close(walk(cell, torch.cat([features, elapsed], -1)), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("wiring", WIRINGS.values(), ids=WIRINGS)
def test_sparsity_masks_are_those_of_ncps(wiring):
    expected = {key: value for key, value in NcpsWiredCell(4, wiring()).state_dict().items() if key.endswith("sparsity_mask")}
    masks = {key: value for key, value in WiredCfC(4, wiring()).state_dict().items() if key.endswith("sparsity_mask")}
    assert masks.keys() == expected.keys()
    for key, mask in masks.items():
        torch.testing.assert_close(mask, expected[key], rtol=0, atol=0)


def test_weights_without_a_synapse_have_no_effect_and_no_gradient():
    cell = WiredCfC(4, AutoNCP(13, 3)).double()
    x = torch.cat(irregular(1, 5, 4), -1)
    before = walk(cell, x)
    before.sum().backward()
    for layer in cell.layers:
        missing = layer.sparsity_mask == 0
        assert missing.any()
        assert (layer.ff1.weight.grad[missing] == 0).all()
        with torch.no_grad():
            layer.ff1.weight[missing] = 1e6
    torch.testing.assert_close(walk(cell, x), before, rtol=0, atol=0)


def test_a_cell_follows_the_protocol(cell):
    check_cell(cell)
    state = cell.initial_state(2)
    assert state.shape == (2, cell.state_size)
    assert cell.readout(state).shape == (2, cell.output_size)


def test_a_step_works_for_any_leading_dimensions(cell):
    drive = cell.drive(torch.cat(irregular(2, 5, 2), -1))
    state = torch.randn(2, 5, cell.state_size, dtype=torch.float64)
    together = cell.step(state, drive)
    for batch, time in itertools.product(range(2), range(5)):
        alone = cell.step(state[batch, time], type(drive)(*(leaf[batch, time] for leaf in drive)))
        assert alone.shape == (cell.state_size,)
        torch.testing.assert_close(together[batch, time], alone, rtol=0, atol=1e-12)


def test_the_dense_structure_holds_the_jacobian_of_the_step(cell):
    drive = at(cell.drive(torch.cat(irregular(1, 1, 2), -1)), 0)
    state = torch.randn(1, cell.state_size, dtype=torch.float64)
    expected = torch.autograd.functional.jacobian(lambda state: cell.step(state, drive), state)[0, :, 0]
    torch.testing.assert_close(Dense.of(lambda state: cell.step(state, drive), state).to_dense()[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("activation", ["lecun_tanh", "silu", "relu", "tanh", "gelu"])
@pytest.mark.parametrize("layers", [0, 1, 3], ids="{}layers".format)
@pytest.mark.parametrize("mode", MODES)
def test_the_analytic_jacobian_is_that_of_autograd(mode, layers, activation, training):
    cell = CfCCell(2, 3, mode, activation, backbone_units=4, backbone_layers=layers, backbone_dropout=0.3).double().train(training)
    perturb(cell)
    drive = cell.drive(torch.cat(irregular(2, 5, 2), -1))
    state = torch.randn(2, 5, 3, dtype=torch.float64)
    value, jacobian = cell.linearize(state, drive)
    expected_value, expected = Dense.linearize(lambda state: cell.step(state, drive), state)
    torch.testing.assert_close(value, expected_value, rtol=0, atol=1e-14)
    torch.testing.assert_close(jacobian.to_dense(), expected.to_dense(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("per_unit", [False, True], ids=["one_gap", "gap_per_unit"])
def test_every_analytic_jacobian_is_that_of_autograd(cell, per_unit):
    features, elapsed = irregular(2, 5, 2)
    units = cell.cell.state_size if isinstance(cell, MixedMemoryCell) else cell.state_size
    if per_unit:
        elapsed = elapsed * torch.rand(units, dtype=torch.float64)
    drive = cell.drive(torch.cat([features, elapsed], -1))
    state = torch.randn(2, 5, cell.state_size, dtype=torch.float64)
    value, jacobian = cell.linearize(state, drive)
    expected_value, expected = Dense.linearize(lambda state: cell.step(state, drive), state)
    torch.testing.assert_close(value, expected_value, rtol=0, atol=1e-14)
    torch.testing.assert_close(jacobian.to_dense(), expected.to_dense(), rtol=0, atol=1e-12)


class Adapted(torch.nn.Module):
    """A low-rank adapter around a linear layer."""

    def __init__(self, base):
        super().__init__()
        self.base, self.down, self.up = base, torch.nn.Linear(base.in_features, 1), torch.nn.Linear(1, base.out_features)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def test_adapted_heads_and_later_layers_count_in_the_step_and_its_jacobian():
    reference = NcpsCell(3, 5, backbone_units=7, backbone_layers=2).double()
    cell = CfCCell(3, 5, backbone_units=7, backbone_layers=2).double()
    cell.load_state_dict(reference.state_dict())
    cell.ff1 = reference.ff1 = Adapted(cell.ff1).double()
    cell.backbone[2] = reference.backbone[2] = Adapted(cell.backbone[2]).double()
    features, elapsed = irregular(2, 6, 3)
    x = torch.cat([features, elapsed], -1)
    torch.testing.assert_close(walk(cell, x), walk_ncps(reference, features, elapsed, 5), rtol=0, atol=1e-12)
    drive, state = cell.drive(x), torch.randn(2, 6, 5, dtype=torch.float64)
    expected = Dense.of(lambda state: cell.step(state, drive), state).to_dense()
    torch.testing.assert_close(cell.linearize(state, drive)[1].to_dense(), expected, rtol=0, atol=1e-12)


def test_an_adapted_lstm_counts_in_the_jacobian():
    cell = MixedMemoryCell(CfCCell(2, 3, backbone_units=4), LSTMGates(2, 3)).double()
    cell.lstm.recurrent_map = Adapted(cell.lstm.recurrent_map).double()
    drive, state = cell.drive(torch.cat(irregular(2, 5, 2), -1)), torch.randn(2, 5, 6, dtype=torch.float64)
    expected = Dense.of(lambda state: cell.step(state, drive), state).to_dense()
    torch.testing.assert_close(cell.linearize(state, drive)[1].to_dense(), expected, rtol=0, atol=1e-12)


class Halved(CfCCell):
    """A cell with another step and no formula of its own for its Jacobian."""

    def step(self, state, drive):
        return 0.5 * super().step(state, drive)


def test_an_overridden_step_inside_another_cell_counts_in_the_jacobian():
    wired = WiredCfC(2, FullyConnected(3)).double()
    wired.layer_0 = Halved(2, 3, backbone_layers=0).double()
    for cell in (wired, MixedMemoryCell(Halved(2, 3, backbone_units=4), LSTMGates(2, 3)).double()):
        drive, state = cell.drive(torch.cat(irregular(2, 5, 2), -1)), torch.randn(2, 5, cell.state_size, dtype=torch.float64)
        expected = Dense.of(partial(cell.step, drive=drive), state).to_dense()
        torch.testing.assert_close(cell.linearize(state, drive)[1].to_dense(), expected, rtol=0, atol=1e-12)


def test_parametrised_weights_count_everywhere():
    reference = NcpsCell(3, 5, backbone_units=7).double()
    cell = CfCCell(3, 5, backbone_units=7).double()
    cell.load_state_dict(reference.state_dict())
    for model in (reference, cell):
        for layer in (model.backbone[0], model.ff1):
            torch.nn.utils.parametrizations.weight_norm(layer)
            with torch.no_grad():
                layer.parametrizations.weight.original0.mul_(1.7)
    features, elapsed = irregular(2, 6, 3)
    torch.testing.assert_close(walk(cell, torch.cat([features, elapsed], -1)), walk_ncps(reference, features, elapsed, 5), rtol=0, atol=1e-12)


@pytest.mark.parametrize("layers", [0, 1], ids="{}layers".format)
@pytest.mark.parametrize("change", [lambda layer: prune.l1_unstructured(layer, "weight", amount=0.5), Adapted], ids=["pruned", "adapted"])
def test_a_layer_that_cannot_be_split_is_refused(layers, change):
    cell = CfCCell(3, 5, backbone_units=7, backbone_layers=layers)
    if layers:
        cell.backbone[0] = change(cell.backbone[0])
    else:
        cell.ff1 = change(cell.ff1)
    with pytest.raises(CellError, match="must be a plain Linear layer"):
        cell.drive(torch.rand(2, 6, 4))


def test_walked_gradients_pass_gradcheck(cell):
    x = torch.cat(irregular(2, 3, 2), -1).requires_grad_()
    state = 0.1 * torch.randn(2, cell.state_size, dtype=torch.float64)
    names, weights = zip(*((name, weight) for name, weight in cell.named_parameters() if weight.requires_grad), strict=True)

    class Walk(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell

        def forward(self, x, state):
            return walk(self.cell, x, state)

    def states(x, state, *weights):
        return torch.func.functional_call(Walk(), {f"cell.{name}": weight for name, weight in zip(names, weights, strict=True)}, (x, state))

    inputs = (x, state.requires_grad_(), *(weight.detach().clone().requires_grad_() for weight in weights))
    assert torch.autograd.gradcheck(states, inputs)


@pytest.mark.parametrize("mode", ["default", "no_gate"])
def test_states_stay_within_the_declared_bounds(mode):
    cell = CfCCell(2, 3, mode, backbone_units=4)
    perturb(cell)
    low, high = cell.state_bounds
    states = walk(cell, 100 * torch.rand(4, 20, 3), 100 * torch.randn(4, 3))
    assert states.min() >= low
    assert states.max() <= high


def test_one_gap_for_each_unit_is_one_gap_when_all_are_equal(cell):
    features, elapsed = irregular(2, 4, 2)
    units = cell.cell.state_size if isinstance(cell, MixedMemoryCell) else cell.state_size
    expected = walk(cell, torch.cat([features, elapsed], -1))
    torch.testing.assert_close(walk(cell, torch.cat([features, elapsed.expand(2, 4, units)], -1)), expected, rtol=0, atol=1e-12)


def test_dropout_is_drawn_with_the_drive_and_not_in_the_step():
    cell = CfCCell(2, 3, backbone_units=4, backbone_layers=3, backbone_dropout=0.5)
    drive = cell.drive(torch.rand(2, 6, 3))
    state = torch.rand(2, 6, 3)
    assert drive.keep.shape == (2, 6, 8)
    torch.testing.assert_close(cell.step(state, drive), cell.step(state, drive), rtol=0, atol=0)


def test_dropout_factors_keep_the_mean_and_differ_between_samples_and_layers():
    torch.manual_seed(0)
    cell = CfCCell(2, 3, backbone_units=50, backbone_layers=3, backbone_dropout=0.25)
    first, second = cell.drive(torch.rand(8, 50, 3)).keep.chunk(2, dim=-1)
    assert first.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert first.mean().item() == pytest.approx(1.0, abs=0.02)
    assert (first != second).any()
    assert (first[:, 0] != first[:, 1]).any()


def test_dropout_of_one_drops_what_ncps_drops():
    reference = NcpsCell(2, 3, backbone_units=4, backbone_layers=2, backbone_dropout=1.0).double()
    cell = CfCCell(2, 3, backbone_units=4, backbone_layers=2, backbone_dropout=1.0).double()
    cell.load_state_dict(reference.state_dict())
    features, elapsed = irregular(2, 5, 2)
    expected = walk_ncps(reference, features, elapsed, 3)
    torch.testing.assert_close(walk(cell, torch.cat([features, elapsed], -1)), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layers", [1, 2], ids="{}layers".format)
def test_no_dropout_factors_are_drawn_in_evaluation_or_for_a_single_layer(layers):
    cell = CfCCell(2, 3, backbone_units=4, backbone_layers=layers, backbone_dropout=0.5)
    cell.train(layers == 1)
    assert not hasattr(cell.drive(torch.rand(2, 6, 3)), "keep")
