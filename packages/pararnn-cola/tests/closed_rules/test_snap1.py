from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from pararnn_cola import COLA, TBPTT1, ConvLayer, CoverageError, Network, Readout, RNNLayer, SnAp1
from pararnn_cola.layers.base import Layer

EXACT = {"rtol": 1e-12, "atol": 1e-13}
KINDS = pytest.mark.parametrize("kind", ["rnn", "leaky", "leaks", "spiking"])
STACKS = pytest.mark.parametrize("kinds", [("rnn", "leaky"), ("leaks", "spiking", "rnn"), ("spiking", "spiking")], ids="-".join)


def diagonal(weight):
    return torch.diag(torch.diagonal(weight))


def make_diagonal(network):
    with torch.no_grad():
        for layer in network.recurrent:
            layer.weight_hh.copy_(diagonal(layer.weight_hh))


@KINDS
@pytest.mark.parametrize("batch", [1, 4], ids="B{}".format)
def test_it_equals_backpropagation_in_which_units_remember_through_their_own_weight_only(kind, batch, network, stream, cut_backpropagation, streamed):
    net, data = network(kind), stream(batch)
    assert_close(streamed(SnAp1, net, *data), cut_backpropagation(net, *data, diagonal), **EXACT)


@STACKS
def test_in_a_stack_influence_is_followed_within_each_layer(kinds, network, stream, cut_backpropagation, streamed):
    net, data = network(*kinds), stream()
    assert_close(streamed(SnAp1, net, *data), cut_backpropagation(net, *data, diagonal), **EXACT)


@KINDS
def test_it_is_exact_where_the_recurrent_matrix_is_diagonal(kind, network, stream, backpropagate, streamed):
    net, data = network(kind), stream()
    make_diagonal(net)
    expected = backpropagate(net, *data)
    found = streamed(SnAp1, net, *data)
    # Entries off the diagonal are zero now, but their gradient is exact only in what unit i does to itself, which is all that there is.
    assert_close(found, expected, **EXACT)


def test_it_differs_from_backpropagation_where_units_talk_to_each_other(network, stream, backpropagate, streamed):
    net, data = network("rnn"), stream()
    expected = backpropagate(net, *data)
    found = streamed(SnAp1, net, *data)
    assert not torch.allclose(found["layers.0.weight_hh"], expected["layers.0.weight_hh"], rtol=1e-2)
    assert_close(found["readout.weight"], expected["readout.weight"], **EXACT)


def test_it_refuses_maps_and_names_rules_that_learn_them():
    network = Network(ConvLayer(2, 3, 3, size=(4, 4)), Readout(48, 2, unit_dims=3))
    with pytest.raises(CoverageError, match=r"layer 0 \(ConvLayer\).*weight_hh.*COLA, TBPTT1.*BPTT") as caught:
        SnAp1(network)
    assert caught.value.data["missing"] == ["weight_hh", "weight_ih", "bias"]
    COLA(network)


def test_a_layer_of_ones_own_that_tells_how_its_units_act_on_themselves_is_learned(stream, network, streamed):
    class Mine(Layer):
        """The vanilla layer, by another's hand."""

        gradient_names = eligible_names = ("weight_hh",)

        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.weight_hh = inner.weight_hh
            inner.weight_ih.requires_grad_(False)
            inner.bias.requires_grad_(False)
            del self._modules["inner"]
            object.__setattr__(self, "inner", inner)

        def zero_state(self, *batch):
            return self.inner.zero_state(*batch)

        def forward(self, u, state):
            return self.inner(u, state)

        def slope(self, preactivation, state):
            return self.inner.slope(preactivation, state)

        def eligible(self, moment):
            return (moment.previous,)

        def own_path(self, moment):
            return self.weight_hh.diagonal()

    data, theirs, ours = stream(), network("rnn"), network("rnn")
    expected = streamed(SnAp1, theirs, *data)
    found = streamed(SnAp1, Network(Mine(ours.layers[0]), ours.readout), *data)
    assert_close(found["layers.0.weight_hh"], expected["layers.0.weight_hh"], **EXACT)


def test_it_learns_to_recall_what_a_rule_of_one_step_cannot_see():
    losses = {}
    for rule in (SnAp1, TBPTT1):
        generator = torch.Generator().manual_seed(0)
        network = Network(RNNLayer(1, 8, generator=generator), Readout(8, 1, generator=generator))
        with torch.no_grad():
            network.layers[0].weight_hh.copy_(torch.diag(torch.full((8,), 0.5)))
            network.layers[0].weight_ih.mul_(0.1)
        learner = rule(network, lr=0.3)
        total = 0.0
        for sequence in range(300):
            learner.reset()
            first = torch.randn(16, 1, generator=generator)
            learner.step(first)
            for _ in range(3):
                learner.step(torch.zeros(16, 1))
            loss = learner.step(torch.zeros(16, 1), first).loss
            total += loss.item() if sequence >= 200 else 0.0
        losses[rule.__name__] = total / 100
    assert losses["SnAp1"] < 0.5 * losses["TBPTT1"]
