"""A row that becomes NaN at a step without a target, and is reset then, takes nothing of the other rows along."""

import pytest
import torch

from pararnn_cola import BPTT, RTRL, TBPTT, UORO, ConvLayer, LeakyLayer, Network, Readout, RNNLayer, stack_networks
from pararnn_cola.experimental.lstm import LSTMLayer

RULES = {
    "BPTT": BPTT,
    "TBPTT-live": lambda network, **options: TBPTT(network, 9, **options),
    "TBPTT-rerun": lambda network, **options: TBPTT(network, 2, 9, **options),
    "RTRL": RTRL,
    "UORO": UORO,
}
LAYERS = {
    "rnn": lambda draw: RNNLayer(3, 4, generator=draw),
    "relu": lambda draw: RNNLayer(3, 4, activation="relu", generator=draw),
    "leaky": lambda draw: LeakyLayer(3, 4, generator=draw),
    "lstm": lambda draw: LSTMLayer(3, 4, generator=draw),
    "conv": lambda draw: ConvLayer(1, 2, 1, size=(2,), generator=draw),
}


def made(layer):
    draw = torch.Generator().manual_seed(0)
    return Network(LAYERS[layer](draw), Readout(4, 2, unit_dims=2 if layer == "conv" else 1, generator=draw))


def inputs(layer, *lead):
    return torch.randn(*lead, 3, *((1, 2) if layer == "conv" else (3,)))


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")], ids=str)
def test_the_gradient_is_that_of_a_stream_without_the_bad_input(kind, layer, bad):
    us, ys, found = [inputs(layer) for _ in range(4)], torch.randn(4, 3, 2), []
    for value in (1.0, bad):
        network = made(layer)
        learner = RULES[kind](network, update="accumulate")
        learner.step(us[0], ys[0])
        broken = us[1].clone()
        broken[0] = value
        learner.step(broken)
        learner.reset(torch.tensor([True, False, False]))
        for u, y in zip(us[2:], ys[2:], strict=True):
            learner.step(u, y)
        learner.flush()
        found.append([p.grad.clone() for p in network.parameters()])
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["BPTT", "TBPTT-live", "TBPTT-rerun"])
def test_so_it_is_in_an_ensemble(kind):
    us, ys, found = [inputs("rnn", 2) for _ in range(3)], torch.randn(3, 2, 3, 2), []
    for value in (1.0, float("nan")):
        network = stack_networks([Network.rnn(3, 4, 2, seed=seed) for seed in range(2)])
        learner = RULES[kind](network, update="accumulate")
        learner.step(us[0], ys[0])
        broken = us[1].clone()
        broken[1, 0] = value
        learner.step(broken)
        learner.reset(torch.tensor([[False, False, False], [True, False, False]]))
        learner.step(us[2], ys[2])
        learner.flush()
        found.append([p.grad.clone() for p in network.parameters()])
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
def test_a_mask_made_in_inference_mode_serves(kind, inside):
    with torch.inference_mode():
        mask, rows = torch.tensor([True, False, True]), torch.tensor([False, True, False])
    learner, (u, y) = RULES[kind](made("rnn"), update="accumulate"), (inputs("rnn"), torch.randn(3, 2))
    with torch.inference_mode(inside):
        for _ in range(2):
            learner.step(u, y, mask=mask)
            learner.reset(rows)
    learner.flush()
    assert all(p.grad.isfinite().all() for p in learner.network.parameters())


def test_a_window_that_owes_more_than_it_may_is_sent_back_at_once(network, stream, feed):
    learner = feed(TBPTT(network(), 8), stream(5))
    learner.k1 = learner.k2 = 4
    feed(learner, stream(1))
    assert learner.owed == 0
