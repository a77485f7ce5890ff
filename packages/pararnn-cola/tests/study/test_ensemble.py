from __future__ import annotations

import pytest
import torch

from pararnn.errors import ConfigError, ShapeError
from pararnn_cola import BPTT, COLA, TBPTT1, Network, SnAp1, stack_networks, unstack
from pararnn_cola.ensemble import select_runs

RUNS, BATCH, STEPS = 3, 4, 7


def networks(runs=RUNS, **changes):
    options = {"input_size": 2, "state_size": 5, "output_size": 2, "dtype": torch.float64, **changes}
    return [Network.rnn(**options, seed=seed) for seed in range(runs)]


def sequences(runs=RUNS):
    generator = torch.Generator().manual_seed(9)
    shape = (STEPS, runs, BATCH, 2)
    return torch.randn(shape, generator=generator, dtype=torch.float64), torch.randn(shape, generator=generator, dtype=torch.float64)


def train(rule, network, inputs, targets):
    """Three sequences, an update after each; all losses."""
    learner = rule(network, update="accumulate", lr=0.05)
    losses = []
    for _ in range(3):
        learner.init(*inputs.shape[1:-1])
        losses += [learner.step(u, y, weight).loss for u, y, weight in zip(inputs, targets, [1.0, 0.0, 0.5, 1.0, 1.0, 0.25, 1.0], strict=True)]
        learner.apply()
    return torch.stack([loss for loss in losses if loss is not None], -1)


@pytest.mark.parametrize("layers", [1, 2], ids="{}layers".format)
@pytest.mark.parametrize("rule", [COLA, TBPTT1, SnAp1, BPTT])
def test_each_run_of_an_ensemble_learns_what_it_learns_alone(rule, layers):
    alone = networks(num_layers=layers)
    together = stack_networks(alone)
    inputs, targets = sequences()
    losses = train(rule, together, inputs, targets)
    for run, (network, inside) in enumerate(zip(alone, unstack(together), strict=True)):
        expected = train(rule, network, inputs[:, run], targets[:, run])
        torch.testing.assert_close(losses[run], expected, rtol=0, atol=1e-12)
        for name, parameter in network.named_parameters():
            torch.testing.assert_close(inside.get_parameter(name), parameter, rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize(
    ("rule", "option", "values", "dims"),
    [(COLA, "margin", [0.02, 0.1, 0.3], 1), (COLA, "rho_alpha", [0.5, 0.9, 0.99], 1), (TBPTT1, "hidden_gain", [1.0, 3.0, 10.0], 2)],
)
def test_each_run_can_have_a_value_of_its_own_for_an_option(rule, option, values, dims):
    alone = networks()
    together = stack_networks(alone)
    inputs, targets = sequences()
    per_run = torch.tensor(values, dtype=torch.float64).reshape(-1, *(1,) * dims)
    losses = train(lambda network, **rest: rule(network, **{option: per_run}, **rest), together, inputs, targets)
    for run, network in enumerate(alone):
        expected = train(lambda network, run=run, **rest: rule(network, **{option: values[run]}, **rest), network, inputs[:, run], targets[:, run])
        torch.testing.assert_close(losses[run], expected, rtol=0, atol=1e-12)


def test_unstacking_gives_back_the_networks_that_were_stacked():
    alone = networks()
    alone[0].readout.bias.requires_grad_(False)
    for network in alone[1:]:
        network.readout.bias.requires_grad_(False)
    for before, after in zip(alone, unstack(stack_networks(alone)), strict=True):
        for name, parameter in before.named_parameters():
            assert torch.equal(after.get_parameter(name), parameter)
            assert after.get_parameter(name).requires_grad == parameter.requires_grad


def test_stacking_copies():
    alone = networks()
    together = stack_networks(alone)
    with torch.no_grad():
        together.readout.weight.zero_()
    assert all(network.readout.weight.any() for network in alone)
    assert together.lead == (RUNS,)


def test_selected_runs_repeat_in_the_order_they_are_named():
    together = stack_networks(networks())
    taken = select_runs(together, [2, 0, 2])
    assert torch.equal(taken.readout.weight, together.readout.weight[[2, 0, 2]])
    taken.readout.weight.data[0] = 0
    assert taken.readout.weight[2].any()


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        (lambda: networks(1, state_size=6)[0], "state_size"),
        (lambda: networks(1, num_layers=2)[0], "modules"),
        (lambda: networks(1, activation="relu")[0], "activation"),
        (lambda: networks(1, dtype=torch.float32)[0], "dtype"),
        (lambda: networks(1)[0].requires_grad_(False), "requires_grad"),
    ],
    ids=["size", "layers", "activation", "dtype", "frozen"],
)
def test_networks_that_differ_in_more_than_values_are_refused(other, fault):
    with pytest.raises(ConfigError, match=f"network 1 cannot learn beside network 0: .*{fault}"):
        stack_networks([networks(1)[0], other()])


def test_an_empty_ensemble_is_refused():
    with pytest.raises(ConfigError, match="at least one network"):
        stack_networks([])


def test_a_single_network_cannot_be_unstacked():
    with pytest.raises(ShapeError, match="stack_networks"):
        unstack(networks(1)[0])
