"""TBPTT(k1, k2) against its definition, and when weights move."""

import pytest
import torch

from pararnn_cola import TBPTT


@pytest.mark.parametrize("kind", ["plain", "ragged"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("k1", "k2"), [(1, 1), (3, 3), (9, 9), (1, 2), (1, 4), (3, 4), (3, 7), (3, 20)], ids=lambda k: str(k))
def test_each_loss_goes_back_to_the_state_k2_steps_before_its_window_ends(network, stream, feed, agree, truncated, k1, k2, layers, kind):
    net, steps = network(layers), stream(9, kind=kind)
    feed(TBPTT(net, k1, k2, update="accumulate"), steps)
    agree(net, truncated(net, steps, k1, k2))


@pytest.mark.parametrize("kind", ["plain", "ragged"])
@pytest.mark.parametrize(("k1", "k2"), [(2, 3), (4, 6), (5, 12), (20, 30)])
def test_a_last_window_that_is_shorter_goes_back_as_far(network, stream, feed, agree, truncated, k1, k2, kind):
    net, steps = network(), stream(11, kind=kind)
    feed(TBPTT(net, k1, k2, update="accumulate"), steps).flush()
    agree(net, truncated(net, steps, k1, k2))


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_equal_windows_are_autograd_block_by_block(network, stream, feed, agree, exact, k):
    net, steps = network(2), stream(11)
    sums, states = {name: torch.zeros_like(p) for name, p in net.named_parameters()}, None
    for start in range(0, len(steps), k):
        block = steps[start : start + k]
        for name, gradient in exact(net, block, states).items():
            sums[name] += gradient
        with torch.no_grad():
            states = [state[0] for state in net(torch.stack([step.u for step in steps[: start + k]], 1))[1]]
    feed(TBPTT(net, k, update="accumulate"), steps).flush()
    agree(net, sums)


@pytest.mark.parametrize(("k1", "k2"), [(3, 3), (2, 5)], ids=["live", "rerun"])
def test_weights_move_at_the_ends_of_windows_only(network, stream, k1, k2):
    net = network()
    learner = TBPTT(net, k1, k2, lr=0.1)
    for t, step in enumerate(stream(7), start=1):
        before = [p.detach().clone() for p in net.parameters()]
        learner.step(step.u, step.y)
        moved = any(not torch.equal(old, new) for old, new in zip(before, net.parameters(), strict=True))
        assert moved == (t % k1 == 0)


def test_a_window_that_ends_in_a_step_without_a_target_is_learned(network, stream):
    net, steps = network(), stream(3)
    before = net.layers[0].bias.detach().clone()
    learner = TBPTT(net, 3, lr=0.1)
    for t, step in enumerate(steps):
        learner.step(step.u, step.y if t == 0 else None)
    assert not torch.equal(before, net.layers[0].bias)


def test_a_window_without_a_loss_moves_nothing_even_with_momentum(network, stream):
    net, steps = network(), stream(4)
    learner = TBPTT(net, 2, optimizer=torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    for step in steps[:2]:
        learner.step(step.u, step.y)
    before = net.layers[0].weight_hh.detach().clone()
    for step in steps[2:]:
        learner.step(step.u)
    assert torch.equal(before, net.layers[0].weight_hh)


@pytest.mark.parametrize("k2", [3, 6])
@pytest.mark.parametrize("ending", ["reset", "init", "apply"])
def test_what_ends_a_window_early_delivers_its_losses(network, stream, feed, gradients, agree, k2, ending):
    flushed, net, steps = network(), network(), stream(5)
    feed(TBPTT(flushed, 3, k2, update="accumulate", lr=0.0), steps).flush()
    learner = feed(TBPTT(net, 3, k2, update="accumulate", lr=0.0), steps)
    getattr(learner, ending)(*([2] if ending == "init" else []))
    agree(net, gradients(flushed))


def test_flush_twice_counts_nothing_twice(network, stream, feed, gradients, agree):
    for k2 in (4, 6):
        net = network()
        learner = feed(TBPTT(net, 4, k2, update="accumulate"), stream(6))
        learner.flush()
        once = gradients(net)
        learner.flush()
        agree(net, once)


def test_the_past_is_run_again_with_the_weights_of_the_moment(network, stream, exact):
    net, steps = network(), stream(4)
    learner = TBPTT(net, 2, 4, lr=0.5)
    for step in steps[:3]:
        learner.step(step.u, step.y)
    learner.update = "accumulate"
    learner.step(steps[3].u, steps[3].y)
    silent = [type(step)(step.u, None) if t < 2 else step for t, step in enumerate(steps)]
    for name, gradient in exact(net, silent).items():
        torch.testing.assert_close(net.get_parameter(name).grad, gradient, rtol=0, atol=1e-12)
