"""Networks that learn side by side learn what each learns alone."""

import re

import pytest
import torch
from torch import nn

from pararnn.errors import ConfigError, ShapeError
from pararnn_cola import COLA, TBPTT1

RUNS, TIME = 3, 20
# The closure divides small numbers, and training feeds back: rounding of sums in another order grows, faster at higher rates.
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def stacked(networks):
    """The parameters of `networks` behind a leading axis, in a copy of the first."""
    whole = networks[0]
    weights, _ = torch.func.stack_module_state(networks)
    for name, values in weights.items():
        owner, _, own = name.rpartition(".")
        setattr(whole.get_submodule(owner), own, nn.Parameter(values.detach()))
    return whole


def per_run(values, *shape):
    return torch.tensor(values, dtype=torch.float64).view(RUNS, *shape)


RULES = {
    "COLA": (COLA, {}, [{}] * RUNS),
    "COLA-each": (
        COLA,
        {
            "rho_alpha": per_run([0.9, 0.99, 0.5], 1),
            "rho_mu": per_run([0.8, 0.9, 0.999], 1),
            "margin": per_run([0.1, 0.3, 0.02], 1),
            "alpha_bound": per_run([0.99, 0.5, 0.9], 1),
        },
        [
            {"rho_alpha": 0.9, "rho_mu": 0.8, "margin": 0.1, "alpha_bound": 0.99},
            {"rho_alpha": 0.99, "rho_mu": 0.9, "margin": 0.3, "alpha_bound": 0.5},
            {"rho_alpha": 0.5, "rho_mu": 0.999, "margin": 0.02, "alpha_bound": 0.9},
        ],
    ),
    "COLA-estimate": (
        COLA,
        {"project": "estimate", "margin": per_run([0.1, 0.3, 0.02], 1)},
        [{"project": "estimate", "margin": m} for m in (0.1, 0.3, 0.02)],
    ),
    "TBPTT1": (TBPTT1, {}, [{}] * RUNS),
    "TBPTT1-each": (TBPTT1, {"hidden_gain": per_run([1.0, 3.0, 10.0], 1, 1)}, [{"hidden_gain": gain} for gain in (1.0, 3.0, 10.0)]),
}


@pytest.fixture(params=RULES.values(), ids=RULES)
def both(request, network):
    """A maker of an ensemble's learner and of those of its runs alone."""

    def make(**options):
        kind, together, each = request.param
        layers = options.pop("num_layers", 1)

        def networks():
            return [network(seed=run, num_layers=layers) for run in range(RUNS)]

        return kind(stacked(networks()), **together, **options), [kind(net, **own, **options) for net, own in zip(networks(), each, strict=True)]

    return make


@pytest.fixture
def data(stream):
    inputs, targets = zip(*(stream(TIME, 4, seed=20 + run) for run in range(RUNS)), strict=True)
    return torch.stack(inputs, 1), torch.stack(targets, 1)


def check(ensemble, alone):
    for run, learner in enumerate(alone):
        for name, p in learner.network.named_parameters():
            torch.testing.assert_close(ensemble.network.get_parameter(name)[run], p, msg=lambda text, name=name: f"{name}: {text}", **CLOSE)


@pytest.mark.parametrize("clip", [None, 0.05], ids=["free", "clipped"])
@pytest.mark.parametrize("layers", [1, 2], ids="{}-layers".format)
def test_each_run_of_an_ensemble_is_the_run_alone(both, data, clip, layers):
    inputs, targets = data
    ensemble, alone = both(lr=0.005, clip=clip, num_layers=layers)
    for time in range(TIME):
        result = ensemble.step(inputs[time], targets[time], signals=True)
        for run, learner in enumerate(alone):
            single = learner.step(inputs[time, run], targets[time, run], signals=True)
            torch.testing.assert_close(result.output[run], single.output, **CLOSE)
            torch.testing.assert_close(result.loss[run], single.loss, **CLOSE)
            torch.testing.assert_close(result.signals[0].used[run], single.signals[0].used, **CLOSE)
    check(ensemble, alone)


def test_each_run_has_rows_of_its_own(both, data):
    inputs, targets = data
    generator = torch.Generator().manual_seed(6)
    masks, begins, dead = (torch.rand(TIME, RUNS, 4, generator=generator) > share for share in (0.3, 0.8, 0.8))
    weights = torch.rand(TIME, RUNS, 4, generator=generator, dtype=torch.float64).masked_fill(dead, 0)
    ensemble, alone = both(lr=0.005)
    for time in range(TIME):
        ensemble.step(inputs[time], targets[time], weights[time], masks[time])
        ensemble.reset(begins[time])
        for run, learner in enumerate(alone):
            learner.step(inputs[time, run], targets[time, run], weights[time, run], masks[time, run])
            learner.reset(begins[time, run])
    check(ensemble, alone)


def test_one_mask_and_one_weight_a_sample_serve_all_runs(both, data):
    inputs, targets = data
    ensemble, alone = both(lr=0.005)
    weight, mask = torch.tensor([1.0, 0.0, 0.5, 2.0]), torch.tensor([True, True, False, True])
    for time in range(TIME):
        ensemble.step(inputs[time], targets[time], weight, mask)
        for run, learner in enumerate(alone):
            learner.step(inputs[time, run], targets[time, run], weight, mask)
    check(ensemble, alone)


def test_an_ensemble_learns_classes(both, data):
    inputs, targets = data
    classes = targets.argmax(-1)
    ensemble, alone = both(lr=0.005, loss="cross_entropy")
    for time in range(TIME):
        ensemble.step(inputs[time], classes[time])
        for run, learner in enumerate(alone):
            learner.step(inputs[time, run], classes[time, run])
    check(ensemble, alone)


def test_a_run_that_diverges_leaves_the_others_alone(both, data):
    inputs, targets = data
    ensemble, alone = both(lr=0.005, clip=0.1)
    targets = targets.clone()
    targets[5:, 1] = torch.nan
    for time in range(TIME):
        ensemble.step(inputs[time], targets[time])
        for run in (0, 2):
            alone[run].step(inputs[time, run], targets[time, run])
    assert ensemble.network.readout.bias[1].isnan().all()
    for run in (0, 2):
        torch.testing.assert_close(ensemble.network.readout.bias[run], alone[run].network.readout.bias, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["COLA-each", "TBPTT1-each"])
def test_settings_of_each_run_may_be_in_another_precision_than_the_network(name, dtype, network, data):
    kind, together, _ = RULES[name]
    learner = kind(stacked([network(seed=run, dtype=dtype) for run in range(RUNS)]), **together, lr=0.005)
    for u, y in zip(*data, strict=True):
        learner.step(u.to(dtype), y.to(dtype))
    assert all(p.dtype is dtype and p.isfinite().all() for p in learner.network.parameters())


def test_an_ensemble_resumes_to_the_bit(both, data, through_a_file, equal):
    inputs, targets = data
    whole, _ = both(lr=0.005)
    part, _ = both(lr=0.005)
    for time in range(TIME):
        whole.step(inputs[time], targets[time])
        part.step(inputs[time], targets[time])
        if time == 8:
            saved = through_a_file(part.state_dict())
            part, _ = both(lr=0.005)
            part.load_state_dict(saved)
    assert equal(whole.state_dict(), part.state_dict())


def test_samples_that_are_not_one_batch_a_run_are_refused(both, data):
    inputs, targets = data
    ensemble, alone = both()
    with pytest.raises(ShapeError, match=re.escape("(3, batch, *input), was expected")):
        ensemble.step(inputs[0, 0], targets[0, 0])
    with pytest.raises(ShapeError, match=re.escape("(3, batch, *input), was expected")):
        ensemble.step(inputs[0, :2], targets[0, :2])
    with pytest.raises(ShapeError, match=re.escape("(batch, *input), was expected")):
        alone[0].step(inputs[0], targets[0])
    with pytest.raises(ConfigError, match=re.escape("it takes init(3, batch)")):
        ensemble.init(4)
