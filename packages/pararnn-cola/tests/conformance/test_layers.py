"""The kit for layers: all layers of this package pass it, and each check finds its fault."""

import pytest
import torch

from pararnn.errors import ConformanceError
from pararnn_cola import CellLayer, ConvLayer, LeakyLayer, RNNLayer, SpikingLayer
from pararnn_cola.conformance import check_layer, layer_checks

CHECKS = layer_checks()
LAYERS = {
    "RNNLayer": (lambda: RNNLayer(3, 5), (3,)),
    "RNNLayer-relu": (lambda: RNNLayer(3, 5, activation="relu"), (3,)),
    "RNNLayer-softplus": (lambda: RNNLayer(3, 5, activation="softplus"), (3,)),
    "LeakyLayer": (lambda: LeakyLayer(3, 5), (3,)),
    "SpikingLayer": (lambda: SpikingLayer(3, 5), (3,)),
    "ConvLayer": (lambda: ConvLayer(2, 3, 3, size=(4, 4)), (2, 4, 4)),
    "ConvLayer-each-position": (lambda: ConvLayer(2, 3, 3, size=(4, 4), pool_positions=False), (2, 4, 4)),
}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(2)


@pytest.mark.parametrize("name", LAYERS)
def test_the_layers_of_this_package_pass(name):
    make, shape = LAYERS[name]
    report = check_layer(make(), torch.randn(4, *shape))
    # A convolution's weights act on many units each, so two checks are of what it does not have.
    assert report.summary() == (f"{len(CHECKS) - 2} passed, 2 not applicable" if "Conv" in name else f"{len(CHECKS)} passed")


def test_a_cell_of_the_core_passes_what_applies_to_it():
    assert check_layer(CellLayer(RNNLayer(3, 5)), torch.randn(4, 3)).summary() == "4 passed, 9 not applicable"


def test_the_layer_itself_is_left_as_it_is():
    layer = RNNLayer(3, 5)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    check_layer(layer, torch.randn(4, 3))
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    assert all(p.grad is None for p in layer.parameters())


class Growing(RNNLayer):
    def zero_state(self, *batch):
        return (*super().zero_state(*batch), self.bias.new_zeros(*batch))

    def forward(self, u, state):
        return super().forward(u, state[:1])


class Writing(RNNLayer):
    def forward(self, u, state):
        with torch.no_grad():
            state[0].mul_(1.0)
        return super().forward(u, state)


class Normalised(RNNLayer):
    def current(self, u, previous):
        x = super().current(u, previous)
        return x - x.mean(0)


class Detaching(RNNLayer):
    def forward(self, u, state):
        return super().forward(u, tuple(part.detach() for part in state))


class Telling(RNNLayer):
    def observe(self, u, state):
        following, moment = super().observe(u, state)
        return following, moment._replace(previous=moment.output)


class Steep(RNNLayer):
    def slope(self, preactivation, state):
        return 2 * super().slope(preactivation, state)


class Elsewhere(RNNLayer):
    def forward(self, u, state):
        following, x = super().forward(u, state)
        return following, x.clone()


class Doubled(RNNLayer):
    def signal_to_input(self, signal, moment):
        return 2 * super().signal_to_input(signal, moment)


class Transposed(RNNLayer):
    def signal_to_previous(self, signal, moment):
        return signal @ self.weight_hh.T


class Setting(RNNLayer):
    def add_gradients(self, into, signal, output_gradient, moment, scale):
        if "bias" in into:
            into["bias"].zero_()
        super().add_gradients(into, signal, output_gradient, moment, scale)


class Demanding(RNNLayer):
    def add_gradients(self, into, signal, output_gradient, moment, scale):
        if len(into) == 3:
            super().add_gradients(into, signal, output_gradient, moment, scale)


class Unnamed(RNNLayer):
    gradient_names = ("weight_hh", "weight_ih")


class Summing(RNNLayer):
    def pool(self, values, rows=None):
        return super().pool(values, rows) * len(values)


class Diluting(RNNLayer):
    def pool(self, values, rows=None):
        return values.mean(-2) if rows is None else (values * rows.unsqueeze(-1)).mean(-2)


class Flat(RNNLayer):
    def peak(self, values):
        return values.mean(-2)


class Unscaled(RNNLayer):
    def operator_norm(self):
        return torch.ones(())


class High(RNNLayer):
    def peak(self, values):
        return super().peak(values) + 5


class Frobenius(RNNLayer):
    def operator_norm(self):
        return self.weight_hh.detach().norm()


class Blind(RNNLayer):
    def eligible(self, moment):
        previous, inputs, ones = super().eligible(moment)
        return 2 * previous, inputs, ones


class Selfless(RNNLayer):
    def own_path(self, moment):
        return 2 * super().own_path(moment)


FAULTS = [
    ("eligible", Blind, "the gradient of weight_hh that eligible means"),
    ("own_path", Selfless, "it is the diagonal of the recurrent map"),
    ("pool_and_spread", High, "peak is none of the values"),
    ("operator_norm", Frobenius, "the largest singular value of dx[t]/dh[t-1]"),
    ("states", Growing, "states of different forms"),
    ("step_writes_nothing", Writing, "forward writes into state 0"),
    ("rows_stay_apart", Normalised, "combine entries of one sample only"),
    ("gradients_reach_every_weight", Detaching, "no gradient reaches the state"),
    ("observe", Telling, "the moment's previous differ"),
    ("slope", Steep, "slope and autograd's dh/dx differ"),
    ("slope", Elsewhere, "return the very tensor that phi was applied to"),
    ("signal_to_input", Doubled, "U^T signal"),
    ("signal_to_previous", Transposed, "W^T signal"),
    ("add_gradients", Setting, "the buffer of bias"),
    ("add_gradients", Demanding, "look up each name on its own"),
    ("add_gradients", Unnamed, "gradient_names lacks bias"),
    ("pool_and_spread", Summing, "it is a mean"),
    ("pool_and_spread", Diluting, "divide by the number of rows that count"),
    ("pool_and_spread", Flat, "peak is below"),
    ("operator_norm", Unscaled, "where the weight is tripled"),
]


@pytest.mark.parametrize(("name", "kind", "message"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_each_check_finds_its_fault(name, kind, message):
    with pytest.raises(ConformanceError) as caught:
        CHECKS[name](kind(3, 5, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64))
    assert message in str(caught.value)


def test_every_check_has_a_fault_to_find():
    assert {name for name, _, _ in FAULTS} == set(CHECKS)


def test_the_whole_kit_names_every_fault_of_a_layer():
    with pytest.raises(ConformanceError, match="layer Transposed: 12 passed, 1 failed"):
        check_layer(Transposed(3, 5), torch.randn(4, 3))
