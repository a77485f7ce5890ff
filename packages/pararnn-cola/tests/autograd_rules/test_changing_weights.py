"""The influence that rules carry forward belongs to weights by name: some are frozen, others unfrozen, as the stream goes by."""

import copy
import io

import pytest
import torch
from torch.func import functional_call

from pararnn_cola import RTRL, UORO

LOWER, UPPER = "layers.0.", "layers.1."
BIAS = "layers.0.bias"


def freeze(network, names):
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(not name.startswith(names))


def idle(rule, network):
    return rule(network, update="accumulate", optimizer=torch.optim.SGD(network.parameters(), lr=0.0))


def oracle(network, steps, frozen):
    """Gradients of the last step's loss, in which a weight acts only where it was not frozen, and only since it was unfrozen last."""
    named, states = dict(network.named_parameters()), network.zero_state(len(steps[0].u))
    for step, names in zip(steps, frozen, strict=True):
        now = {name: p.detach() if name.startswith(names) else p for name, p in named.items()}
        output, states = functional_call(network, now, (step.u[:, None], states))
    trained = {name: p for name, p in named.items() if not name.startswith(frozen[-1])}
    loss = (output[:, 0] - steps[-1].y).square().mean(-1).mean()
    return dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True))


def run(learner, steps, frozen, *, between=lambda learner: learner):
    for at, (step, names) in enumerate(zip(steps, frozen, strict=True)):
        freeze(learner.network, names)
        learner = between(learner)
        learner.step(step.u, step.y if at == len(steps) - 1 else None)
    return learner


CHANGES = {
    "the lower layer is frozen as the upper is freed": [(UPPER,), (UPPER,), (LOWER,)],
    "a bias is frozen": [("none",), ("none",), (BIAS,)],
    "a bias is freed": [(BIAS,), (BIAS,), ("none",)],
    "a layer is freed": [(LOWER,), (LOWER,), ("none",)],
    "a layer is freed early": [(UPPER,), ("none",), ("none",)],
    "all are freed": [("layers",), ("layers",), ("none",)],
}


@pytest.fixture
def square(stream):
    """A network of two equal layers, and steps for it."""
    from pararnn_cola import Network

    def make(batch=2):
        steps = stream(3, batch=batch)
        return Network.rnn(3, 3, 2, num_layers=2, seed=0), steps

    return make


@pytest.mark.parametrize("change", CHANGES)
def test_rtrl_keeps_the_influence_of_what_stays_and_begins_that_of_what_is_new(change, square):
    network, steps = square()
    run(idle(RTRL, network), steps, CHANGES[change])
    for name, expected in oracle(network, steps, CHANGES[change]).items():
        torch.testing.assert_close(network.get_parameter(name).grad, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("change", CHANGES)
def test_in_the_mean_so_does_uoro(change, square):
    network, steps = square(batch=1)
    # One sample in many rows, each with signs of its own: their mean is that over the signs.
    rows = 2048
    many = [type(step)(step.u.expand(rows, -1), step.y.expand(rows, -1)) for step in steps]
    run(idle(UORO, network), many, CHANGES[change])
    expected = oracle(network, steps, CHANGES[change])
    error = torch.cat([(network.get_parameter(name).grad - gradient).flatten() for name, gradient in expected.items()])
    assert error.norm() < 0.15 * torch.cat([gradient.flatten() for gradient in expected.values()]).norm()


@pytest.mark.parametrize("rule", [RTRL, UORO])
@pytest.mark.parametrize("change", CHANGES)
def test_a_checkpoint_tells_whose_influence_it_holds(rule, change, square):
    network, steps = square()
    whole = run(idle(rule, copy.deepcopy(network)), steps, CHANGES[change])

    def reloaded(learner):
        file = io.BytesIO()
        torch.save(learner.state_dict(), file)
        file.seek(0)
        other = idle(rule, copy.deepcopy(learner.network))
        other.load_state_dict(torch.load(file, weights_only=True))
        return other

    pieces = run(idle(rule, copy.deepcopy(network)), steps, CHANGES[change], between=reloaded)
    for one, two in zip(whole.network.parameters(), pieces.network.parameters(), strict=True):
        assert (one.grad is None) == (two.grad is None)
        assert one.grad is None or torch.equal(one.grad, two.grad)
