"""Networks: walks that autograd differentiates, shared layers, weights of torch's own modules, the parallel solve."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pararnn import ParaRNN
from pararnn.errors import ConfigError, ShapeError
from pararnn_cola import COLA, TBPTT1, Network, Readout, RNNLayer

CLOSE = {"rtol": 1e-12, "atol": 1e-14}


@pytest.fixture(autouse=True)
def _double_precision():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(5)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_layers_with_the_weights_of_torch_give_its_outputs(nonlinearity, bias):
    source = nn.RNN(3, 6, num_layers=2, nonlinearity=nonlinearity, bias=bias, batch_first=True)
    network = Network([RNNLayer.from_torch(source, 0), RNNLayer.from_torch(source, 1)], Readout(6, 6))
    with torch.no_grad():
        network.readout.weight.copy_(torch.eye(6))
    x, initial = torch.randn(4, 9, 3), torch.randn(2, 4, 6)
    outputs, states = network(x, tuple((state,) for state in initial))
    expected, final = source(x, initial)
    torch.testing.assert_close(outputs, expected, **CLOSE)
    torch.testing.assert_close(torch.stack([state[0] for state in states]), final, **CLOSE)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_a_layer_with_the_weights_of_a_cell_of_torch_gives_its_step(bias):
    cell = nn.RNNCell(3, 6, bias=bias)
    u, h = torch.randn(4, 3), torch.randn(4, 6)
    (state,), _ = RNNLayer.from_torch(cell)(u, (h,))
    torch.testing.assert_close(state, cell(u, h), **CLOSE)


def test_weights_are_copied_not_shared():
    source = nn.RNN(3, 6)
    layer = RNNLayer.from_torch(source)
    with torch.no_grad():
        layer.weight_hh.zero_()
    assert source.weight_hh_l0.abs().min() > 0


def test_a_bidirectional_network_is_refused():
    with pytest.raises(ConfigError, match="reads the future"):
        RNNLayer.from_torch(nn.RNN(3, 6, bidirectional=True))


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "relu", "softplus", "linear"])
def test_the_parallel_solve_of_a_layer_equals_the_walk_of_its_network(activation):
    network = Network.rnn(3, 6, 2, activation=activation, seed=1)
    (layer,), x = network.recurrent, torch.randn(4, 33, 3)
    with torch.no_grad():
        layer.weight_hh.mul_(0.5)
    torch.testing.assert_close(network.readout(ParaRNN(layer)(x)), network(x)[0], rtol=1e-9, atol=1e-10)


def test_a_stack_solved_in_parallel_equals_the_walk_of_its_network():
    network = Network.rnn(3, 6, 2, num_layers=2, seed=1)
    x = torch.randn(4, 17, 3)
    states = x
    for layer in network.recurrent:
        states = ParaRNN(layer)(states)
    torch.testing.assert_close(network.readout(states), network(x)[0], rtol=1e-9, atol=1e-10)


def test_a_sequence_in_two_calls_is_the_sequence_in_one():
    network, x = Network.rnn(3, 6, 2, num_layers=2, seed=1), torch.randn(4, 11, 3)
    whole, final = network(x)
    first, states = network(x[:, :4])
    second, last = network(x[:, 4:], states)
    assert torch.equal(torch.cat((first, second), 1), whole)
    assert all(torch.equal(one[0], two[0]) for one, two in zip(final, last, strict=True))


@pytest.mark.parametrize("shape", [(4, 3), (4, 0, 3), (4, 5, 2)], ids=str)
def test_inputs_that_are_no_sequence_are_refused(shape):
    with pytest.raises(ShapeError, match="expected"):
        Network.rnn(3, 6, 2)(torch.randn(*shape))


@pytest.mark.parametrize("kind", [COLA, TBPTT1])
def test_one_layer_in_two_places_has_the_gradients_of_both(kind):
    shared = RNNLayer(6, 6)
    network = Network([shared, shared], Readout(6, 2))
    u, y = torch.randn(4, 6), torch.randn(4, 2)
    learner = kind(network, update="accumulate")
    learner.step(u, y)
    found = [p.grad.clone() for p in network.parameters()]
    network.zero_grad()
    F.mse_loss(network.advance(u, network.zero_state(4))[0], y).backward()
    torch.testing.assert_close(found, [p.grad for p in network.parameters()], **CLOSE)


def test_a_seed_means_the_same_weights_in_every_precision():
    double, single = (Network.rnn(3, 6, 2, seed=4, dtype=dtype) for dtype in (torch.float64, torch.float32))
    assert all(torch.equal(one.float(), two) for one, two in zip(double.parameters(), single.parameters(), strict=True))


def test_a_loss_of_ones_own_gives_the_gradients_of_autograd():
    def huber(output, target):
        return F.huber_loss(output, target, reduction="none").mean(-1)

    network, u, y = Network.rnn(3, 6, 2, seed=1), torch.randn(4, 3), torch.randn(4, 2)
    TBPTT1(network, loss=huber, update="accumulate").step(u, y)
    found = [p.grad.clone() for p in network.parameters()]
    network.zero_grad()
    F.huber_loss(network.advance(u, network.zero_state(4))[0], y).backward()
    torch.testing.assert_close(found, [p.grad for p in network.parameters()], **CLOSE)


@pytest.mark.parametrize("name", ["mse", "cross_entropy"])
def test_losses_have_the_values_and_gradients_of_torch(name):
    from pararnn_cola.losses import loss_of

    loss, output = loss_of(name), torch.randn(3, 5, 4, requires_grad=True)
    target = torch.randn(3, 5, 4) if name == "mse" else torch.randint(4, (3, 5))
    losses, gradient = loss.both(output.detach(), target)
    torch.testing.assert_close(losses, loss.values(output, target), **CLOSE)
    expected = F.mse_loss(output, target, reduction="sum") / 4 if name == "mse" else F.cross_entropy(output.movedim(-1, 1), target, reduction="sum")
    torch.testing.assert_close(losses.sum(), expected.detach(), **CLOSE)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, output)[0], **CLOSE)


def test_a_loss_that_is_cut_from_the_output_is_refused():
    learner = COLA(Network.rnn(3, 6, 2), loss=lambda output, target: (output.detach() - target).square().mean(-1))
    with pytest.raises(ConfigError, match="does not depend on the output"):
        learner.step(torch.randn(4, 3), torch.randn(4, 2))
