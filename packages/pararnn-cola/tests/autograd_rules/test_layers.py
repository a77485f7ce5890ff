"""The rules on every kind of layer that comes with the package, and in half precision."""

import pytest
import torch

from pararnn_cola import BPTT, RTRL, TBPTT, TBPTT1, UORO, ConvLayer, LeakyLayer, Network, Readout, RNNLayer, SpikingLayer


def draw():
    return torch.Generator().manual_seed(3)


NETWORKS = {
    "leaky": lambda: Network([LeakyLayer(3, 4, generator=draw()), LeakyLayer(4, 3, leak=0.5, generator=draw())], Readout(3, 2, generator=draw())),
    "spiking": lambda: Network(
        [SpikingLayer(3, 6, threshold=0.3, generator=draw()), RNNLayer(6, 3, generator=draw())], Readout(3, 2, generator=draw())
    ),
    "convolution": lambda: Network(
        [ConvLayer(2, 2, 3, size=(3, 4), generator=draw()), ConvLayer(2, 1, 3, size=(3, 4), generator=draw())],
        Readout(12, 2, unit_dims=3, generator=draw()),
    ),
}


def inputs(kind, length):
    generator = torch.Generator().manual_seed(4)
    shape = (3, 2, 3, 4) if kind == "convolution" else (3, 3)
    return [(2 * torch.randn(shape, generator=generator), torch.randn(3, 2, generator=generator)) for _ in range(length)]


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("rule", [BPTT, RTRL, lambda net, **options: TBPTT(net, 2, 9, **options)], ids=["BPTT", "RTRL", "TBPTT"])
def test_gradients_equal_autograd_through_the_modules(rule, kind):
    net, steps = NETWORKS[kind](), inputs(kind, 5)
    learner = rule(net, update="accumulate")
    for t, (u, y) in enumerate(steps):
        learner.step(u, None if t == 2 else y, weight=0.5)
    learner.flush()
    states, total = net.zero_state(3), torch.zeros(())
    for t, (u, y) in enumerate(steps):
        output, states = net.advance(u, states)
        total = total + (0 if t == 2 else 0.5 * (output - y).square().mean())
    named = dict(net.named_parameters())
    for name, expected in zip(named, torch.autograd.grad(total, list(named.values())), strict=True):
        assert expected.abs().max() > 0, name
        torch.testing.assert_close(named[name].grad, expected, rtol=0, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize(
    "make", [BPTT, lambda net: TBPTT(net, 3), lambda net: TBPTT(net, 2, 4), RTRL, UORO], ids=["BPTT", "live", "rerun", "RTRL", "UORO"]
)
def test_checkpoints_hold_every_state_of_every_layer(make, kind):
    steps, rows = inputs(kind, 7), torch.tensor([False, True, False])

    def through(learner, part):
        for t, (u, y) in part:
            if t == 3:
                learner.reset(rows)
            learner.step(u, y, mask=~rows if t == 4 else None)
        return learner

    whole, first, second = (make(NETWORKS[kind]()) for _ in range(3))
    numbered = list(enumerate(steps))
    through(whole, numbered).apply()
    second.load_state_dict(through(first, numbered[:5]).state_dict())
    through(second, numbered[5:]).apply()
    for mine, expected in zip(second.network.parameters(), whole.network.parameters(), strict=True):
        assert torch.equal(mine, expected)


@pytest.mark.parametrize("make", [lambda net: TBPTT(net, 1, update="accumulate"), lambda net: TBPTT(net, 1, 1, update="accumulate")])
def test_half_precision_sums_in_float32_as_tbptt1_does(make, network):
    one, other = network(dtype=torch.bfloat16), network(dtype=torch.bfloat16)
    learners = [make(one), TBPTT1(other, update="accumulate")]
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        u, y = torch.randn(3, 3, generator=generator).bfloat16(), torch.randn(3, 2, generator=generator, dtype=torch.float32)
        for learner in learners:
            learner.step(u, y)
    for name, shadow in learners[0].buffers.state_dict().items():
        assert shadow.dtype == torch.float32
        expected = learners[1].buffers.state_dict()[name]
        # Each addend is rounded to 8 bits once; a sum kept in bfloat16 would lose far more.
        assert (shadow - expected).norm() < 0.005 * expected.norm()


@pytest.mark.parametrize("rule", [RTRL, UORO, BPTT], ids=lambda rule: rule.__name__)
def test_half_precision_networks_learn_by_every_rule(rule, network, stream):
    net, exact = network(dtype=torch.bfloat16), network()
    learners = [rule(net, update="accumulate"), BPTT(exact)]
    for step in stream(4):
        learners[0].step(step.u.bfloat16(), step.y.float())
        learners[1].step(step.u, step.y)
    for learner in learners:
        learner.flush()
    for name, parameter in net.named_parameters():
        assert parameter.grad.dtype == torch.bfloat16
        if rule is not UORO:
            reference = exact.get_parameter(name).grad
            assert (parameter.grad.double() - reference).norm() < 0.03 * reference.norm() + 0.005
