"""BPTT and RTRL against autograd of the plain formula."""

import pytest
import torch

from pararnn_cola import BPTT, RTRL, TBPTT, TBPTT1, Network

RULES = {"BPTT": BPTT, "RTRL": RTRL, "TBPTT-long": lambda network, **options: TBPTT(network, 1, 50, **options)}


@pytest.fixture(params=RULES.values(), ids=RULES)
def rule(request):
    return lambda network, **options: request.param(network, update="accumulate", **options)


@pytest.mark.parametrize("kind", ["plain", "ragged"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("length", "batch"), [(1, 3), (2, 1), (7, 3)], ids=["T1", "B1", "T7"])
def test_gradients_equal_autograd_through_the_stream(rule, network, stream, feed, exact, agree, layers, length, batch, kind):
    net, steps = network(layers), stream(length, batch, kind)
    feed(rule(net), steps).flush()
    agree(net, exact(net, steps))


@pytest.mark.parametrize("cls", [BPTT, RTRL, lambda network, **options: TBPTT(network, 2, 5, **options)], ids=["BPTT", "RTRL", "TBPTT"])
def test_gradients_of_two_sequences_add_up(cls, network, stream, feed, exact, agree):
    net, first, second = network(), stream(4, seed=1), stream(3, seed=2)
    learner = feed(cls(net, update="accumulate"), first)
    learner.reset()
    feed(learner, second).flush()
    expected, more = exact(net, first), exact(net, second)
    # k2 = 5 covers either sequence, and never reaches across the reset.
    agree(net, {name: expected[name] + more[name] for name in expected})


def test_apply_is_one_step_of_gradient_descent_and_the_window_ends_there(network, stream, feed, exact):
    net, steps = network(), stream(5)
    before, expected = {name: p.detach().clone() for name, p in net.named_parameters()}, exact(net, steps)
    learner = feed(BPTT(net, lr=0.1), steps)
    learner.apply()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.detach(), before[name] - 0.1 * expected[name], rtol=0, atol=1e-12)
    states = [state[0] for state in learner.states]
    more = stream(4, seed=9)
    expected = exact(net, more, states)
    feed(learner, more).flush()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=1e-12)


def test_cross_entropy_has_the_gradient_of_its_definition(rule, network, stream):
    net, steps = network(), stream(5)
    classes = [torch.tensor([0, 1, 1]), torch.tensor([1, 1, 0]), None, torch.tensor([0, 0, 0]), torch.tensor([1, 0, 1])]
    learner = rule(net, loss="cross_entropy")
    for step, y in zip(steps, classes, strict=True):
        learner.step(step.u, y)
    learner.flush()
    h, total = torch.zeros(3, net.layers[0].state_size), torch.zeros(())
    for step, y in zip(steps, classes, strict=True):
        h = torch.tanh(h @ net.layers[0].weight_hh.T + step.u @ net.layers[0].weight_ih.T + net.layers[0].bias)
        output = h @ net.readout.weight.T + net.readout.bias
        if y is not None:
            total = total - torch.log_softmax(output, -1)[torch.arange(3), y].mean()
    for parameter, expected in zip(net.parameters(), torch.autograd.grad(total, list(net.parameters())), strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=0, atol=1e-12)


def test_the_hand_computed_case_of_a_linear_unit_comes_out():
    # x[t] = w x[t-1], w = 0.2, x[0] = 0.9: dx[2]/dw = 2 w x0 = 0.36, dx[3]/dw = 3 w^2 x0 = 0.108; a known trap for hand-written windows.
    for rule in (lambda n, **o: TBPTT(n, 1, 3, **o), BPTT, RTRL):
        for length, truth in ((2, 0.36), (3, 0.108)):
            net = Network.rnn(1, 1, 1, activation="linear")
            with torch.no_grad():
                for parameter, value in zip(net.parameters(), (0.2, 1.0, 0.0, 1.0, 0.0), strict=True):
                    parameter.fill_(value)
            learner = rule(net, loss=lambda output, target: output[..., 0], update="accumulate")
            # The input sets x[0] through a weight of one; x[0] itself has no path from w, as the state before it is zero.
            learner.step(torch.full((1, 1), 0.9))
            for t in range(1, length + 1):
                learner.step(torch.zeros(1, 1), torch.zeros(1, 1) if t == length else None)
            learner.flush()
            assert net.layers[0].weight_hh.grad.item() == pytest.approx(truth, abs=1e-15)


def test_a_row_that_is_reset_has_no_gradient_from_before_and_the_live_one_keeps_its_own(rule, network, stream, gradients):
    steps = stream(4, batch=2)
    only_last = [step.y if t == 3 else None for t, step in enumerate(steps)]
    both, alone, fresh = network(), network(), network()
    learner = rule(both)
    for t, (step, y) in enumerate(zip(steps, only_last, strict=True)):
        if t == 2:
            learner.reset(torch.tensor([True, False]))
        learner.step(step.u, y)
    learner.flush()
    kept, cut = rule(alone), rule(fresh)
    for t, (step, y) in enumerate(zip(steps, only_last, strict=True)):
        kept.step(step.u[1:], None if y is None else y[1:])
        if t >= 2:
            cut.step(step.u[:1], None if y is None else y[:1])
    kept.flush()
    cut.flush()
    for name, gradient in gradients(both).items():
        halves = (gradients(alone)[name] + gradients(fresh)[name]) / 2
        torch.testing.assert_close(gradient, halves, rtol=0, atol=1e-12)


def test_a_masked_row_may_hold_anything(rule, network, stream, feed, gradients):
    steps = stream(6, kind="ragged")
    clean, dirty = network(), network()
    feed(rule(clean), steps).flush()
    learner = rule(dirty)
    for step in steps:
        u, y = step.u.clone(), None if step.y is None else step.y.clone()
        if step.mask is not None:
            u[~step.mask] = float("nan")
            if y is not None:
                y[~step.mask] = float("inf")
        if step.reset is not None:
            learner.reset(step.reset)
        learner.step(u, y, step.weight, step.mask)
    learner.flush()
    for name, gradient in gradients(clean).items():
        torch.testing.assert_close(gradients(dirty)[name], gradient, rtol=0, atol=0)


def test_frozen_parameters_stay_without_gradient_and_the_others_are_exact(rule, network, stream, feed, exact):
    net, steps = network(2), stream(5, kind="ragged")
    expected = exact(net, steps)
    frozen = ("layers.0.weight_hh", "readout.bias", "layers.1.bias")
    for name in frozen:
        net.get_parameter(name).requires_grad_(False)
    feed(rule(net), steps).flush()
    for name, parameter in net.named_parameters():
        if name in frozen:
            assert parameter.grad is None
        else:
            torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=1e-12)


def test_with_all_layers_frozen_the_readout_alone_learns(rule, network, stream, feed, exact):
    net, steps = network(), stream(4)
    expected = exact(net, steps)
    net.layers.requires_grad_(False)
    feed(rule(net), steps).flush()
    torch.testing.assert_close(net.readout.weight.grad, expected["readout.weight"], rtol=0, atol=1e-12)
    assert all(parameter.grad is None for parameter in net.layers.parameters())


def test_a_weight_that_two_layers_share_has_the_sum_of_both_gradients(rule, network, stream, feed):
    net, steps = network(2), stream(5)
    net.layers[1].weight_hh = net.layers[0].weight_hh
    feed(rule(net), steps).flush()
    outputs, _ = net(torch.stack([step.u for step in steps], 1))
    targets = torch.stack([step.y for step in steps], 1)
    total = (outputs - targets).square().mean(-1).mean(0).sum()
    for parameter, expected in zip(net.parameters(), torch.autograd.grad(total, list(net.parameters())), strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=0, atol=1e-12)


def test_a_weight_that_layer_and_readout_share_has_the_sum_of_both_gradients(rule):
    draw = torch.Generator().manual_seed(0)
    net = Network.rnn(3, 2, 2, seed=0)
    net.readout.weight = net.layers[0].weight_hh
    xs, ys = torch.randn(3, 5, 3, generator=draw), torch.randn(3, 5, 2, generator=draw)
    learner = rule(net)
    for u, y in zip(xs.unbind(1), ys.unbind(1), strict=True):
        learner.step(u, y)
    learner.flush()
    total = (net(xs)[0] - ys).square().mean(-1).mean(0).sum()
    for parameter, expected in zip(net.parameters(), torch.autograd.grad(total, list(net.parameters())), strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=0, atol=1e-12)


def test_the_truncation_of_one_step_is_tbptt1(network, stream, feed, gradients, agree):
    one, other, steps = network(2), network(2), stream(7, kind="ragged")
    feed(TBPTT(one, 1, update="accumulate"), steps)
    feed(TBPTT1(other, update="accumulate"), steps)
    agree(one, gradients(other))


def test_losses_and_outputs_are_those_of_tbptt1_while_weights_stand_still(rule, network, stream):
    steps = stream(6, kind="ragged")
    one, other = rule(network(2)), TBPTT1(network(2), update="accumulate")
    for step in steps:
        mine, theirs = (learner.step(step.u, step.y, step.weight, step.mask) for learner in (one, other))
        torch.testing.assert_close(mine.output, theirs.output, rtol=0, atol=1e-13)
        assert (mine.loss is None) == (theirs.loss is None)
        if mine.loss is not None:
            torch.testing.assert_close(mine.loss, theirs.loss, rtol=0, atol=1e-13)
