from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from pararnn.errors import ConfigError, ShapeError
from pararnn_cola import COLA, Network, stack_networks
from pararnn_cola.study.optimizers import EnsembleOptimizer

ALGORITHMS = ["sgd", "adam", "adam", "sgd", "adam"]
RATES = [0.3, 0.01, 0.1, 0.02, 0.003]
CLIPS = [1.0, None, 0.1, None, 2.0]
SHAPES = [(3, 4), (4,), ()]
ALONE = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


def gradients(steps=5):
    """Of several sizes, so that some bounds bind and some do not."""
    generator = torch.Generator().manual_seed(3)
    for step in range(steps):
        yield [torch.randn(len(RATES), *shape, generator=generator, dtype=torch.float64) * 10.0 ** (step - 2) for shape in SHAPES]


def parameters():
    generator = torch.Generator().manual_seed(4)
    return [nn.Parameter(torch.randn(len(RATES), *shape, generator=generator, dtype=torch.float64)) for shape in SHAPES]


def ensemble(held):
    return EnsembleOptimizer(held, algorithm=ALGORITHMS, lr=RATES, clip=CLIPS)


def stepped(optimizer, held, many):
    for each in many:
        for parameter, gradient in zip(held, each, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()


@pytest.mark.parametrize("run", range(len(RATES)))
def test_each_run_moves_as_torch_would_move_it_alone(run):
    held = parameters()
    alone = [nn.Parameter(parameter.detach()[run].clone()) for parameter in held]
    reference = ALONE[ALGORITHMS[run]](alone, lr=RATES[run])
    for each in gradients():
        for parameter, gradient in zip(alone, each, strict=True):
            parameter.grad = gradient[run].clone()
        if CLIPS[run] is not None:
            nn.utils.clip_grad_norm_(alone, CLIPS[run])
        reference.step()
    stepped(ensemble(held), held, gradients())
    for parameter, expected in zip(held, alone, strict=True):
        torch.testing.assert_close(parameter[run], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_run_that_diverges_leaves_the_others_alone(bad):
    held, spoilt = parameters(), parameters()
    optimizer, other = ensemble(held), ensemble(spoilt)
    stepped(optimizer, held, gradients())
    many = list(gradients())
    many[1][0][2, 0, 0] = bad
    stepped(other, spoilt, many)
    others = [0, 1, 3, 4]
    assert all(torch.equal(one[others], two[others]) for one, two in zip(held, spoilt, strict=True))
    assert not spoilt[0][2].isfinite().all()


def test_gradients_stay_as_they_were():
    held = parameters()
    each = next(gradients())
    stepped(ensemble(held), held, [each])
    assert all(torch.equal(parameter.grad, gradient) for parameter, gradient in zip(held, each, strict=True))


def test_a_saved_optimizer_goes_on_bit_for_bit():
    many = list(gradients(6))
    held = parameters()
    optimizer = ensemble(held)
    stepped(optimizer, held, many[:3])
    saved = copy.deepcopy(optimizer.state_dict())
    again = [nn.Parameter(parameter.detach().clone()) for parameter in held]
    other = ensemble(again)
    other.load_state_dict(saved)
    stepped(optimizer, held, many[3:])
    stepped(other, again, many[3:])
    assert all(torch.equal(one, two) for one, two in zip(held, again, strict=True))


def test_a_learner_saves_and_goes_on_with_it():
    def learner():
        network = stack_networks([Network.rnn(2, 4, 1, seed=seed, dtype=torch.float64) for seed in range(2)])
        return COLA(network, optimizer=EnsembleOptimizer(network.parameters(), algorithm=["sgd", "adam"], lr=[0.1, 0.01], clip=[1.0, None]))

    generator = torch.Generator().manual_seed(1)
    steps = [(torch.randn(2, 3, 2, generator=generator).double(), torch.randn(2, 3, 1, generator=generator).double()) for _ in range(6)]
    first, second = learner(), learner()
    for u, y in steps[:3]:
        first.step(u, y)
    second.load_state_dict(first.state_dict())
    for u, y in steps[3:]:
        assert torch.equal(first.step(u, y).loss, second.step(u, y).loss)


def test_parameters_of_another_number_of_runs_are_refused():
    with pytest.raises(ShapeError, match=r"\(2, 3\)"):
        EnsembleOptimizer([nn.Parameter(torch.zeros(2, 3))], algorithm=["sgd"], lr=[0.1])


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": ["sgd", "sgd"], "lr": [0.1]},
        {"algorithm": ["lion"], "lr": [0.1]},
        {"algorithm": ["sgd"], "lr": [-0.1]},
        {"algorithm": ["sgd"], "lr": [float("inf")]},
        {"algorithm": ["sgd"], "lr": [0.1], "clip": [0.0]},
    ],
    ids=["lengths", "algorithm", "lr", "infinite", "clip"],
)
def test_settings_that_cannot_work_are_refused(options):
    with pytest.raises(ConfigError):
        EnsembleOptimizer([nn.Parameter(torch.zeros(1, 3))], **options)


def test_groups_of_parameters_are_refused():
    with pytest.raises(ConfigError, match="parameters, not groups"):
        EnsembleOptimizer([{"params": parameters()}], algorithm=["sgd"], lr=[0.1])


def test_a_closure_is_refused():
    held = parameters()
    with pytest.raises(ConfigError, match="closure"):
        ensemble(held).step(lambda: 0.0)
