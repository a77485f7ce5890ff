"""Streams with gaps, weights, masks and resets, and the gradients of the plain formula by autograd through all of it."""

from dataclasses import dataclass

import pytest
import torch

from pararnn_cola import Network

INPUT, STATE, OUTPUT = 3, 4, 2


@dataclass(frozen=True)
class Step:
    u: torch.Tensor
    y: torch.Tensor | None
    weight: torch.Tensor | float | None = None
    mask: torch.Tensor | None = None
    reset: torch.Tensor | None = None


@pytest.fixture(autouse=True)
def _double_precision():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(3)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def network():
    """A maker of tanh networks whose biases are not zero; the same arguments give the same weights."""

    def make(num_layers=1, seed=0, **options):
        made = Network.rnn(INPUT, STATE, OUTPUT, num_layers=num_layers, seed=seed, **options)
        generator = torch.Generator().manual_seed(seed + 1)
        with torch.no_grad():
            for name, parameter in made.named_parameters():
                if name.endswith("bias"):
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
        return made

    return make


@pytest.fixture
def stream():
    """A maker of streams: "plain", or "ragged" with everything that a step may bring."""

    def make(length, batch=3, kind="plain", seed=5):
        draw = torch.Generator().manual_seed(seed)
        steps = []
        for t in range(length):
            u, y = torch.randn(batch, INPUT, generator=draw), torch.randn(batch, OUTPUT, generator=draw)
            weight, mask, reset = torch.rand(batch, generator=draw), torch.rand(batch, generator=draw) > 0.3, torch.rand(batch, generator=draw) > 0.8
            if kind == "plain":
                steps.append(Step(u, y))
                continue
            weight[weight < 0.2] = 0.0
            # Each kind of step comes in turn: without target, without mask, with a number as weight.
            steps.append(
                Step(
                    u,
                    None if t % 5 == 1 else y,
                    (weight, 0.5, None)[t % 3],
                    None if t % 4 == 0 else mask,
                    reset if t % 3 == 1 and t else None,
                )
            )
        return steps

    return make


@pytest.fixture
def feed():
    """A function that sends steps through a learner."""

    def run(learner, steps):
        for step in steps:
            if step.reset is not None:
                learner.reset(step.reset)
            learner.step(step.u, step.y, step.weight, step.mask)
        return learner

    return run


def advance(network, step, states):
    """The formulas of the network, written out; rows without a step keep their state."""
    if step.reset is not None:
        states = [torch.where(step.reset[:, None], torch.zeros_like(h), h) for h in states]
    u, following = step.u, []
    for layer, h in zip(network.layers, states, strict=True):
        new = torch.tanh(h @ layer.weight_hh.T + u @ layer.weight_ih.T + layer.bias)
        following.append(new if step.mask is None else torch.where(step.mask[:, None], new, h))
        u = new
    return u @ network.readout.weight.T + network.readout.bias, following


def loss_of(step, output):
    """`mean_b w_b loss_b`, zero in rows without a step."""
    if step.y is None:
        return output.new_zeros(())
    weight = torch.ones(len(output)) if step.weight is None else step.weight * torch.ones(len(output))
    if step.mask is not None:
        weight = weight * step.mask
    return (weight * (output - step.y).square().mean(-1)).mean()


@pytest.fixture
def exact():
    """Gradients of `sum_t mean_b w[t, b] loss[t, b]` by autograd through the whole stream, from zero states or those given."""

    def gradients(network, steps, states=None):
        states = [torch.zeros(len(steps[0].u), STATE) for _ in network.layers] if states is None else states
        total = torch.zeros(())
        for step in steps:
            output, states = advance(network, step, states)
            total = total + loss_of(step, output)
        return dict(zip(dict(network.named_parameters()), torch.autograd.grad(total, list(network.parameters())), strict=True))

    return gradients


@pytest.fixture
def truncated():
    """What TBPTT(k1, k2) means, word by word: each loss on its own goes back to the detached state `k2` steps before its window ends."""

    def gradients(network, steps, k1, k2):
        values = [[torch.zeros(len(steps[0].u), STATE) for _ in network.layers]]
        with torch.no_grad():
            for step in steps:
                values.append(advance(network, step, values[-1])[1])
        sums = {name: torch.zeros_like(parameter) for name, parameter in network.named_parameters()}
        for at, judged in enumerate(steps):
            if judged.y is None:
                continue
            end = min((at // k1 + 1) * k1, len(steps))
            states = values[max(0, end - k2)]
            for step in steps[max(0, end - k2) : at]:
                _, states = advance(network, step, states)
            output, _ = advance(network, judged, states)
            reached = torch.autograd.grad(loss_of(judged, output), list(network.parameters()), allow_unused=True)
            for total, gradient in zip(sums.values(), reached, strict=True):
                total += 0 if gradient is None else gradient
        return sums

    return gradients


@pytest.fixture
def agree():
    """A check that `.grad` of every parameter is what was expected, to 1e-12."""

    def check(network, expected):
        assert expected.keys() == dict(network.named_parameters()).keys()
        for name, parameter in network.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")

    return check


@pytest.fixture
def gradients():
    """The gradients of a network now, copied."""

    def copied(network):
        return {name: parameter.grad.clone() for name, parameter in network.named_parameters()}

    return copied
