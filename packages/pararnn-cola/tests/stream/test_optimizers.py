"""Optimizers: the learner's, the user's own, over all parameters or some, beside frozen ones, with clipping."""

import pytest
import torch

from pararnn.errors import ConfigError
from pararnn_cola import COLA, TBPTT1, StreamError

CLOSE = {"rtol": 1e-12, "atol": 1e-15}


def gradients(network):
    return {name: p.grad.clone() for name, p in network.named_parameters()}


@pytest.mark.parametrize("to_none", [True, False], ids=["zero-to-none", "zero-in-place"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_an_optimizer_of_ones_own_moves_weights_as_apply_does(rule, to_none, dtype, network, stream, feed):
    data = stream(40, dtype=dtype)
    learner = rule(network(dtype=dtype), lr=0.05, update="accumulate")
    feed(learner, data)
    net = network(dtype=dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    own = rule(net, update="accumulate")
    for time in range(40):
        own.step(data[0][time], data[1][time])
        if time % 10 == 9:
            own.flush()
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)
    for one, two in zip(learner.network.parameters(), net.parameters(), strict=True):
        assert torch.equal(one, two)


def test_gradients_add_up_until_somebody_zeroes_them(rule, network, stream, feed):
    data = stream(9)
    learner = rule(network(), update="accumulate")
    feed(learner, data)
    learner.flush()
    once = gradients(learner.network)
    learner.reset(statistics=True)
    if rule.name == "UORO":
        return
    feed(learner, data)
    learner.flush()
    torch.testing.assert_close(gradients(learner.network), {name: 2 * value for name, value in once.items()}, **CLOSE)


def test_the_applied_gradient_can_be_looked_at_until_the_next_loss(network, stream, feed):
    data = stream(6)
    learner = COLA(network(), lr=0.1)
    feed(learner, data, 0, 4)
    before = [p.detach().clone() for p in learner.network.parameters()]
    feed(learner, data, 4, 5)
    kept = gradients(learner.network)
    for (name, p), old in zip(learner.network.named_parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), old - 0.1 * kept[name])
    learner.step(data[0][5])
    torch.testing.assert_close(gradients(learner.network), kept, rtol=0, atol=0)


def test_an_optimizer_over_some_parameters_moves_those_only(rule, network, stream, feed):
    net = network()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    learner = rule(net, optimizer=torch.optim.SGD(net.readout.parameters(), lr=0.1), clip=0.1)
    feed(learner, stream(20))
    for name, p in net.named_parameters():
        assert torch.equal(p, before[name]) == name.startswith("layers")


def test_an_optimizer_of_another_network_is_refused(rule, network):
    with pytest.raises(ConfigError, match="holds 5 parameters, none of which is a trainable one of this network"):
        rule(network(), optimizer=torch.optim.SGD(network().parameters(), lr=0.1))


def test_what_is_no_optimizer_of_gradients_alone_is_refused(network):
    with pytest.raises(ConfigError, match="is no torch optimizer; make one"):
        COLA(network(), optimizer=torch.optim.Adam)
    net = network()
    with pytest.raises(ConfigError, match="LBFGS evaluates the loss several times"):
        COLA(net, optimizer=torch.optim.LBFGS(net.parameters()))


@pytest.mark.parametrize("frozen", ["layers.0.weight_hh", "layers.0.bias", "readout.weight", "readout.bias", "layers.0"])
def test_a_frozen_parameter_has_no_gradient_and_the_others_have_theirs(rule, frozen, network, stream, feed):
    data, learners = stream(10), []
    for names in ((), (frozen,)):
        net = network()
        for name, p in net.named_parameters():
            p.requires_grad_(not any(name.startswith(chosen) for chosen in names))
        learners.append(rule(net, update="accumulate"))
        feed(learners[-1], data, 0, 9)
        learners[-1].flush()
    free, held = (dict(learner.network.named_parameters()) for learner in learners)
    for name, p in held.items():
        if name.startswith(frozen):
            assert p.grad is None
        elif rule.name != "UORO":
            torch.testing.assert_close(p.grad, free[name].grad, **CLOSE)
        else:
            assert p.grad is not None


def test_a_network_frozen_as_a_whole_is_refused(rule, network):
    with pytest.raises(ConfigError, match="nothing to learn"):
        rule(network().requires_grad_(False))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_parameter_frozen_in_mid_stream_stops_moving(dtype, network, stream, feed):
    data = stream(10, dtype=dtype)
    learner = COLA(net := network(dtype=dtype), lr=0.1)
    feed(learner, data, 0, 5)
    net.recurrent[0].weight_hh.requires_grad_(False)
    before = net.recurrent[0].weight_hh.detach().clone(), net.recurrent[0].bias.detach().clone()
    feed(learner, data, 5)
    assert torch.equal(net.recurrent[0].weight_hh, before[0])
    assert not torch.equal(net.recurrent[0].bias, before[1])
    assert net.recurrent[0].weight_hh.grad is None


def test_clipping_is_that_of_torch(rule, network, stream, feed):
    data = stream(9)
    plain, clipped = rule(network(), update="accumulate"), rule(network(), update="accumulate", clip=0.01, lr=1.0)
    for learner in (plain, clipped):
        feed(learner, data)
        learner.flush()
    before = [p.detach().clone() for p in clipped.network.parameters()]
    clipped.apply()
    torch.nn.utils.clip_grad_norm_(plain.network.parameters(), 0.01)
    for p, old, reference in zip(clipped.network.parameters(), before, plain.network.parameters(), strict=True):
        torch.testing.assert_close(old - p.detach(), reference.grad, rtol=1e-9, atol=1e-15)


def test_a_gradient_below_the_bound_is_left_alone(network, stream, feed, equal):
    data = stream(20)
    plain, clipped = COLA(network(), lr=0.01), COLA(network(), lr=0.01, clip=1e6)
    feed(plain, data)
    feed(clipped, data)
    told = {"settings": None}
    assert equal(plain.state_dict() | told, clipped.state_dict() | told)


def test_two_learners_of_one_network_learn_from_their_own_steps_only(network, stream):
    """Each moves the weights at its steps; neither applies again what the other has applied."""
    inputs, targets = stream(20)
    net, alone = network(), network()
    first, second = TBPTT1(net, lr=0.1), TBPTT1(net, lr=0.1)
    with torch.no_grad():
        h = [alone.zero_state(3), alone.zero_state(3)]
    for time in range(20):
        (first if time % 2 else second).step(inputs[time], targets[time])
        output, states = alone.advance(inputs[time], h[time % 2])
        (output - targets[time]).square().mean().backward()
        h[time % 2] = tuple((state[0].detach(),) for state in states)
        with torch.no_grad():
            for p in alone.parameters():
                p -= 0.1 * p.grad
                p.grad = None
    for one, two in zip(net.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one, two, **CLOSE)


def test_two_accumulating_learners_of_one_network_are_applied_once(network, stream, feed):
    data, net = stream(9), network()
    first, second = COLA(net, update="accumulate", lr=0.1), COLA(net, update="accumulate", lr=0.1)
    feed(first, data)
    feed(second, data)
    before, total = net.readout.weight.detach().clone(), net.readout.weight.grad.clone()
    first.apply()
    second.apply()
    torch.testing.assert_close(net.readout.weight.detach(), before - 0.1 * total, **CLOSE)


def test_a_second_learner_that_only_answers_disturbs_nothing(rule, network, stream, feed, equal):
    data = stream(20)
    plain, watched = rule(network(), lr=0.05), rule(network(), lr=0.05)
    watcher = COLA(watched.network)
    feed(plain, data)
    for time in range(20):
        watched.step(data[0][time], data[1][time])
        if watched.update == "accumulate" and time % 10 == 9:
            watched.apply()
        assert watcher.step(data[0][time]).loss is None
    assert equal(plain.network.state_dict(), watched.network.state_dict())


def test_a_replaced_parameter_is_noticed_before_it_is_trained_in_vain(rule, network, stream, feed):
    data, learner = stream(8), rule(network())
    feed(learner, data, 0, 5)
    readout = learner.network.readout
    readout.bias = torch.nn.Parameter(torch.zeros_like(readout.bias))
    with pytest.raises(StreamError, match="the parameter bias of Readout was replaced after the learner was made"):
        feed(learner, data, 5)


def test_weights_written_in_place_between_steps_count(network, stream):
    inputs, targets = stream(2)
    learner = TBPTT1(net := network())
    learner.step(inputs[0], targets[0])
    with torch.no_grad():
        net.readout.weight.zero_()
        net.readout.bias.fill_(7.0)
    assert torch.equal(learner.step(inputs[1], targets[1]).output, torch.full_like(targets[1], 7.0))
