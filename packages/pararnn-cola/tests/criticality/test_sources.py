"""All that exponents can be measured of: each against the plain product of Jacobians taken by autograd."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from pararnn.errors import ConfigError, ShapeError
from pararnn.structures import Dense
from pararnn_cola import CellLayer, ConvLayer, LeakyLayer, Network, Readout, RNNLayer, SpikingLayer, StepSystem, lyapunov_exponent, lyapunov_spectrum
from pararnn_cola.criticality.foreign import torch_system
from pararnn_cola.criticality.systems import stack_system

WIDE = torch.float64


def flat_step(layer, sizes, shapes):
    """The step of a layer on flat states, written out."""

    def step(state, u):
        parts = [part.reshape(-1, *shape) for part, shape in zip(state.split(sizes, -1), shapes, strict=True)]
        following, _ = layer(u, tuple(parts))
        return torch.cat([part.flatten(1) for part in following], -1)

    return step


def flattened(layer):
    parts = layer.zero_state(1)
    return flat_step(layer, [part[0].numel() for part in parts], [part.shape[1:] for part in parts])


def start_of(layer):
    return lambda batch: torch.cat([part.flatten(1) for part in layer.zero_state(batch)], -1)


def test_forward_mode_agrees_with_the_closed_form(network, drive):
    made, inputs = network(state_size=16), drive(40)
    generic = stack_system(made.recurrent, "by forward mode")
    assert lyapunov_exponent(generic, inputs).trajectories == pytest.approx(lyapunov_exponent(made, inputs).trajectories, abs=1e-13)
    assert lyapunov_spectrum(generic, inputs).exponents == pytest.approx(lyapunov_spectrum(made, inputs).exponents, abs=1e-10)


LAYERS = {
    "leaky": lambda g: LeakyLayer(3, 5, leak=0.7, generator=g, dtype=WIDE),
    "spiking": lambda g: SpikingLayer(3, 5, generator=g, dtype=WIDE),
    "subclass of RNNLayer": lambda g: Squared(3, 5, generator=g, dtype=WIDE),
}


class Squared(RNNLayer):
    """A layer with a step of its own, which the closed form of its base does not describe."""

    def forward(self, u, state):
        (previous,) = state
        x = u @ self.weight_ih.mT + (previous + previous.square()) @ self.weight_hh.mT
        return (torch.tanh(x),), x


@pytest.mark.parametrize("name", LAYERS)
def test_any_layer_has_the_exponent_of_its_plain_product(drive, by_definition, name):
    layer = LAYERS[name](torch.Generator().manual_seed(0))
    inputs = 2 * drive(9, batch=2)
    expected = by_definition(flattened(layer), start_of(layer), inputs)
    assert lyapunov_exponent(layer, inputs, burn_in=0).trajectories == pytest.approx(expected, abs=1e-11)


def test_a_convolution_has_the_exponent_of_its_plain_product(by_definition):
    layer = ConvLayer(1, 2, 3, size=(3, 4), generator=torch.Generator().manual_seed(0), dtype=WIDE)
    inputs = torch.randn(2, 6, 1, 3, 4, generator=torch.Generator().manual_seed(1), dtype=WIDE)
    expected = by_definition(flattened(layer), start_of(layer), inputs)
    assert lyapunov_exponent(layer, inputs, burn_in=0).trajectories == pytest.approx(expected, abs=1e-12)
    longer = torch.randn(2, 200, 1, 3, 4, generator=torch.Generator().manual_seed(1), dtype=WIDE)
    product, vectors = (lyapunov_exponent(layer, longer, method=method).exponent for method in ("product", "qr"))
    assert product == pytest.approx(vectors, abs=0.02)


def test_large_states_are_measured_by_a_few_vectors():
    layer = ConvLayer(1, 9, 3, size=(11, 11), generator=torch.Generator().manual_seed(0))
    inputs = torch.randn(2, 8, 1, 11, 11, generator=torch.Generator().manual_seed(1))
    assert lyapunov_exponent(layer, inputs, burn_in=2).method == "qr"


TORCH = {
    "RNN": lambda: nn.RNN(3, 4, num_layers=2, batch_first=True, dtype=WIDE),
    "ReLU RNN": lambda: nn.RNN(3, 4, nonlinearity="relu", batch_first=True, bias=False, dtype=WIDE),
    "GRU": lambda: nn.GRU(3, 4, num_layers=2, batch_first=True, dtype=WIDE),
    "LSTM": lambda: nn.LSTM(3, 4, num_layers=2, batch_first=True, dtype=WIDE),
}


@pytest.mark.parametrize("name", TORCH)
def test_modules_of_torch_walk_through_their_own_states(drive, by_definition, name):
    torch.manual_seed(0)
    module, inputs = TORCH[name](), drive(6, batch=2)
    system = torch_system(module)
    state = system.initial(2)
    for u in inputs.unbind(1):
        state = system.step(state, u)
    _, final = module(inputs)
    finals = final if isinstance(final, tuple) else (final,)
    expected = torch.cat([part[layer] for layer in range(module.num_layers) for part in finals], -1)
    torch.testing.assert_close(state, expected, rtol=0, atol=1e-14)
    assert lyapunov_exponent(module, inputs, burn_in=0).trajectories == pytest.approx(by_definition(system.step, system.initial, inputs), abs=1e-12)


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell], ids=lambda kind: kind.__name__)
def test_cells_of_torch_are_the_modules_of_one_layer(drive, kind):
    torch.manual_seed(0)
    cell, inputs = kind(3, 4, dtype=WIDE), drive(30)
    whole = getattr(nn, kind.__name__.removesuffix("Cell"))(3, 4, dtype=WIDE)
    whole.load_state_dict({f"{name}_l0": value for name, value in cell.state_dict().items()})
    assert lyapunov_exponent(cell, inputs).exponent == pytest.approx(lyapunov_exponent(whole, inputs).exponent, abs=1e-14)


def test_the_layer_made_from_a_module_of_torch_has_its_exponent(drive):
    torch.manual_seed(0)
    cell, inputs = nn.RNNCell(3, 6, dtype=WIDE), drive(30)
    assert lyapunov_exponent(cell, inputs).exponent == pytest.approx(lyapunov_exponent(RNNLayer.from_torch(cell), inputs).exponent, abs=1e-13)


@pytest.mark.parametrize("options", [{"bidirectional": True}, {"proj_size": 2}], ids=str)
def test_modules_that_are_no_map_of_one_state_are_refused(options):
    with pytest.raises(ConfigError, match="give one without"):
        lyapunov_exponent(nn.LSTM(3, 4, **options), torch.zeros(1, 30, 3))


class PairDrive(NamedTuple):
    current: Tensor
    gate: Tensor


class Gated(nn.Module):
    """A cell of the core with a drive of two tensors and no formula for its Jacobian."""

    structure = Dense
    state_size = 4

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=WIDE))
        self.feed = nn.Parameter(torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=WIDE))

    def initial_state(self, batch):
        return self.weight.new_zeros(batch, 4)

    def drive(self, x):
        return PairDrive(x @ self.feed.mT, torch.sigmoid(x[..., :1]))

    def step(self, state, drive):
        return drive.gate * state + torch.tanh(state @ self.weight.mT + drive.current)

    def readout(self, states):
        return states


class Coarse(Gated):
    """The same with a formula that is not its derivative, and says so."""

    exact_jacobian = False

    def jacobian(self, state, drive):
        return Dense(torch.zeros(*state.shape, 4, dtype=WIDE))


class Told(Gated):
    """The same with its derivative as a formula."""

    def jacobian(self, state, drive):
        slope = 1 - torch.tanh(state @ self.weight.mT + drive.current).square()
        return Dense(torch.diag_embed(drive.gate.expand_as(state)) + slope.unsqueeze(-1) * self.weight)


@pytest.mark.parametrize("kind", [Gated, Coarse, Told], ids=lambda kind: kind.__name__)
def test_cells_of_the_core_have_the_exponent_of_their_plain_product(drive, by_definition, kind):
    cell, inputs = kind(), drive(9, batch=3)

    def step(state, u):
        drive = cell.drive(u.unsqueeze(1))
        return cell.step(state, PairDrive(drive.current[:, 0], drive.gate[:, 0]))

    expected = by_definition(step, cell.initial_state, inputs)
    assert lyapunov_exponent(cell, inputs, burn_in=0).trajectories == pytest.approx(expected, abs=1e-12)
    assert lyapunov_exponent(CellLayer(cell), inputs, burn_in=0).trajectories == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("gate_mix", ["input", "diag_h"])
def test_a_closed_form_continuous_time_cell_has_the_exponent_of_its_plain_product(drive, by_definition, gate_mix):
    cfc = pytest.importorskip("pararnn_cfc")
    torch.manual_seed(0)
    cell, inputs = cfc.ParaCfC(3, 5, gate_mix=gate_mix, dtype=WIDE), drive(9, batch=2)
    inputs[..., -1].abs_()
    expected = by_definition(lambda state, u: cell.step(state, u), cell.initial_state, inputs)
    assert lyapunov_exponent(cell, inputs, burn_in=0).trajectories == pytest.approx(expected, abs=1e-12)


def test_inputs_of_cells_that_do_not_tell_their_size_are_asked_for():
    with pytest.raises(ConfigError, match="pass inputs"):
        lyapunov_exponent(Gated())


def test_a_step_of_your_own_will_do(drive):
    decay = StepSystem(lambda state, u: 0.5 * state + u, lambda batch: torch.zeros(batch, 3, dtype=WIDE))
    assert lyapunov_exponent(decay, drive(30)).exponent == pytest.approx(-0.6931471805599453, abs=1e-14)


def test_a_stack_is_measured_jointly_or_layer_by_layer(network, drive, by_definition):
    made, inputs = network(state_size=6, num_layers=2, gain=1.2), drive(12, batch=2)
    below, above = made.recurrent

    def step(state, u):
        one = below(u, (state[:, :6],))[0][0]
        return torch.cat([one, above(one, (state[:, 6:],))[0][0]], -1)

    expected = by_definition(step, lambda batch: torch.zeros(batch, 12, dtype=WIDE), inputs)
    assert lyapunov_exponent(made, inputs, burn_in=0).trajectories == pytest.approx(expected, abs=1e-12)
    state, seen = below.zero_state(2), []
    for u in inputs.unbind(1):
        state, _ = below(u, state)
        seen.append(state[0].detach())
    for index, layer, fed in ((0, below, inputs), (1, above, torch.stack(seen, 1)), (-1, above, torch.stack(seen, 1))):
        alone = lyapunov_exponent(layer, fed, burn_in=0).trajectories
        assert lyapunov_exponent(made, inputs, layer=index, burn_in=0).trajectories == pytest.approx(alone, abs=1e-14)


def test_the_exponent_of_a_long_stack_is_the_largest_of_its_layers(network, drive):
    made, inputs = network(state_size=8, num_layers=2), drive(800)
    with torch.no_grad():
        made.recurrent[0].weight_hh.mul_(0.5)
    of_layers = [lyapunov_exponent(made, inputs, layer=index).exponent for index in (0, 1)]
    assert lyapunov_exponent(made, inputs).exponent == pytest.approx(max(of_layers), abs=0.02)


def test_layers_of_several_kinds_stand_one_above_the_other(drive):
    generator = torch.Generator().manual_seed(0)
    layers = [RNNLayer(3, 5, generator=generator, dtype=WIDE), LeakyLayer(5, 4, generator=generator, dtype=WIDE)]
    made = Network(layers, Readout(4, 1, generator=generator, dtype=WIDE))
    assert lyapunov_exponent(made, drive(30)).trajectories == pytest.approx(
        lyapunov_exponent(stack_system(made.recurrent, "both"), drive(30)).trajectories, abs=1e-14
    )


@pytest.mark.parametrize("kind", ["cell", "layer", "step"])
def test_what_does_not_tell_its_input_size_names_inputs_that_it_cannot_take(drive, kind):
    cell = Gated().to(WIDE)
    layer = CellLayer(cell)
    source = {"cell": cell, "layer": layer, "step": StepSystem(flattened(layer), start_of(layer))}[kind]
    assert lyapunov_exponent(source, drive(30)).steps == 24
    with pytest.raises(ShapeError, match=r"cannot take inputs .*4, (30, )?2\)"):
        lyapunov_exponent(source, drive(30, input_size=2))


def test_a_step_that_fails_by_itself_fails_in_its_own_words(drive):
    def step(state, u):
        raise ConfigError("no such day")

    with pytest.raises(ConfigError, match="no such day"):
        lyapunov_exponent(StepSystem(step, lambda batch: torch.zeros(batch, 2)), drive(30))
