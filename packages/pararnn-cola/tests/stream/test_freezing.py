"""Weights that are frozen, or unfrozen, in the middle of a stream, and one that stands under two names."""

import copy

import pytest
import torch

from pararnn_cola import BPTT, COLA, RTRL, TBPTT, TBPTT1, CoverageError, EProp, Network, RNNLayer, SnAp1

HALF_AND_SINGLE = [torch.bfloat16, torch.float16, torch.float32]


def freeze(layer, *, frozen):
    for parameter in layer.parameters():
        parameter.requires_grad_(not frozen)


def idle(network):
    """An optimizer that holds every parameter and moves none."""
    return torch.optim.SGD(network.parameters(), lr=0.0)


@pytest.mark.parametrize("kind", [COLA, TBPTT1, EProp, SnAp1, RTRL, BPTT])
def test_one_weight_under_two_names_of_its_layer_has_the_gradients_of_both(kind, stream):
    network = Network.rnn(2, 2, 2, seed=0, dtype=torch.float64)
    (layer,) = network.recurrent
    layer.weight_ih = layer.weight_hh
    inputs, targets = stream(1)
    learner = kind(network, update="accumulate")
    learner.step(inputs[0], targets[0])
    learner.flush()
    output, _ = network.advance(inputs[0], network.zero_state(3))
    (expected,) = torch.autograd.grad((output - targets[0]).square().mean(), layer.weight_hh)
    torch.testing.assert_close(layer.weight_hh.grad, expected, rtol=1e-12, atol=1e-14)


class Twice(RNNLayer):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.more = self.weight_hh


def test_a_second_name_that_no_formula_knows_is_refused(network):
    net = network()
    net.layers[0] = Twice(2, 5, dtype=torch.float64)
    with pytest.raises(CoverageError, match="no formula for the gradient of more"):
        TBPTT1(net)


@pytest.mark.parametrize("sizes", [None, (9, 9), (9, 12)], ids=["all", "graph", "replay"])
def test_a_window_asks_for_the_gradients_of_what_is_trained_when_it_is_sent_back(sizes, network, stream):
    inputs, targets = stream(4)
    net = network(num_layers=2)
    freeze(net.recurrent[1], frozen=True)
    options = {"update": "accumulate", "optimizer": idle(net)}
    learner = BPTT(net, **options) if sizes is None else TBPTT(net, *sizes, **options)
    for time in range(2):
        learner.step(inputs[time], targets[time])
    freeze(net.recurrent[0], frozen=True)
    freeze(net.recurrent[1], frozen=False)
    twin = copy.deepcopy(learner)
    for one in (learner, twin):
        for time in range(2, 4):
            one.step(inputs[time], targets[time])
        one.flush()
    outputs, _ = net(inputs.transpose(0, 1))
    total = (outputs - targets.transpose(0, 1)).square().mean((0, 2)).sum()
    expected = torch.autograd.grad(total, list(net.recurrent[1].parameters()))
    torch.testing.assert_close([p.grad for p in net.recurrent[1].parameters()], list(expected), rtol=1e-12, atol=1e-14)
    assert not any(p.grad is not None and p.grad.any() for p in net.recurrent[0].parameters())
    assert all(
        torch.equal(one.grad, two.grad) for one, two in zip(net.recurrent[1].parameters(), twin.network.recurrent[1].parameters(), strict=True)
    )


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE, ids=str)
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_dropped_gradient_of_a_frozen_weight_does_not_come_back(dtype, clip, network, stream):
    inputs, targets = stream(2, dtype=dtype)
    net = network(dtype=dtype)
    learner = TBPTT1(net, update="accumulate", clip=clip, lr=1.0)
    weight = net.recurrent[0].weight_hh
    before = weight.detach().clone()
    learner.step(inputs[0], targets[0])
    weight.requires_grad_(False)
    weight.grad = None
    learner.step(inputs[1], targets[1])
    assert weight.grad is None
    learner.apply()
    assert torch.equal(weight, before)


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE, ids=str)
@pytest.mark.parametrize("clip", [None, 1e4])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_what_somebody_else_does_to_gradients_just_before_an_update_counts(dtype, clip, share, network, stream):
    inputs, targets = stream(1, dtype=dtype)
    moved = []
    for scale in (1.0, share):
        net = network(dtype=dtype)
        learner = TBPTT1(net, update="accumulate", clip=clip, lr=0.5)
        before = [p.detach().clone() for p in net.parameters()]
        learner.step(inputs[0], targets[0])
        for parameter in net.parameters():
            parameter.grad.mul_(scale)
        kept = [p.grad.clone() for p in net.parameters()]
        learner.apply()
        expected = [old - 0.5 * gradient for old, gradient in zip(before, kept, strict=True)]
        moved.append(all(torch.allclose(p, want, rtol=1e-2, atol=1e-3) for p, want in zip(net.parameters(), expected, strict=True)))
    assert moved == [True, True]


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE, ids=str)
def test_after_an_update_a_window_shows_zeros_until_it_is_sent_back(dtype, network, stream):
    inputs, targets = stream(4, dtype=dtype)
    learner = BPTT(net := network(dtype=dtype), lr=0.1)
    learner.step(inputs[0], targets[0])
    learner.apply()
    assert any(p.grad.any() for p in net.parameters())
    learner.step(inputs[1], targets[1])
    assert not any(p.grad.any() for p in net.parameters())


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE, ids=str)
def test_in_half_precision_too_one_layer_in_two_places_has_the_gradients_of_both(dtype):
    generator = torch.Generator().manual_seed(0)
    network = Network.rnn(3, 3, 1, num_layers=2, seed=0, dtype=torch.float64)
    network.layers[1] = network.layers[0]
    exact = copy.deepcopy(network.to(dtype)).double()
    u, y = torch.randn(4, 3, generator=generator).to(dtype), torch.randn(4, 1, generator=generator).to(dtype)
    for net in (network, exact):
        TBPTT1(net, update="accumulate").step(u.to(net.readout.bias.dtype), y.to(net.readout.bias.dtype))
    for one, two in zip(network.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(one.grad.double(), two.grad, rtol=0.1, atol=0.02)


def test_a_gradient_from_before_the_learner_is_dropped(rule, network, stream):
    inputs, targets = stream(1)
    found = []
    for stale in (0.0, 1e3):
        net = network()
        for parameter in net.parameters():
            parameter.grad = torch.full_like(parameter, stale) if stale else None
        learner = rule(net, update="accumulate")
        learner.step(inputs[0], targets[0])
        learner.flush()
        found.append([p.grad.clone() for p in net.parameters()])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_a_second_learner_of_a_network_keeps_what_the_first_has_gathered(network, stream):
    inputs, targets = stream(2)
    net = network()
    TBPTT1(net, update="accumulate").step(inputs[0], targets[0])
    first = [p.grad.clone() for p in net.parameters()]
    TBPTT1(net, update="accumulate").step(inputs[1], targets[1])
    alone = network()
    TBPTT1(alone, update="accumulate").step(inputs[1], targets[1])
    expected = [one + other.grad for one, other in zip(first, alone.parameters(), strict=True)]
    torch.testing.assert_close([p.grad for p in net.parameters()], expected, rtol=1e-12, atol=1e-14)
