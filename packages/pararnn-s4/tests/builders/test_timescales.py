"""Time steps: their range, and that what is stored gives them back."""

import math

import pytest
import torch

from pararnn.errors import ConfigError, InputError
from pararnn_s4 import init_dt, param_transform

TRANSFORMS = ["exp", "none", "relu", "sigmoid", "softplus"]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("dt_tie", [False, True])
def test_stored_time_steps_stand_for_steps_in_the_range(dt_tie, transform, deterministic):
    stored = init_dt(50, 8, 0.001, 0.1, dt_tie, transform, deterministic, torch.float64)
    dt = param_transform(stored, transform)
    assert stored.shape == (50, 1 if dt_tie else 4)
    assert dt.min() >= 0.001 * (1 - 1e-14)
    assert dt.max() <= 0.1 * (1 + 1e-14)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_deterministic_time_steps_are_spaced_evenly_in_their_logarithm(transform):
    stored = init_dt(3, 8, 0.001, 0.1, dt_transform=transform, deterministic=True, dtype=torch.float64)
    expected = torch.tensor([[0.001], [0.01], [0.1]], dtype=torch.float64)
    torch.testing.assert_close(param_transform(stored, transform), expected, rtol=1e-13, atol=0)


def test_deterministic_time_steps_are_stored_as_logarithms():
    stored = init_dt(2, 8, 0.001, 0.1, deterministic=True, dtype=torch.float64)
    torch.testing.assert_close(stored, torch.tensor([[math.log(0.001)], [math.log(0.1)]], dtype=torch.float64), rtol=1e-15, atol=0)


def test_the_time_steps_themselves_are_had_by_name():
    steps = init_dt(3, 8, 0.001, 0.1, deterministic=True, stored=False)
    torch.testing.assert_close(steps, torch.tensor([[0.001], [0.01], [0.1]]))


def test_deterministic_time_steps_may_differ_between_features_only():
    stored = init_dt(3, 8, dt_tie=False, deterministic=True)
    assert torch.equal(stored, init_dt(3, 8, deterministic=True).expand(3, 4))


@pytest.mark.parametrize("transform", ["exp", "none", "sigmoid", "softplus"])
def test_very_short_time_steps_survive_storage(transform):
    stored = init_dt(4, 8, 1e-7, 1e-6, dt_transform=transform, deterministic=True, dtype=torch.float64)
    expected = torch.logspace(-7, -6, 4, dtype=torch.float64).unsqueeze(-1)
    torch.testing.assert_close(param_transform(stored, transform), expected, rtol=1e-9, atol=0)


def test_random_time_steps_are_uniform_in_their_logarithm():
    logarithms = init_dt(20000, 8, 0.001, 0.1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    quantiles = logarithms.quantile(torch.linspace(0, 1, 5, dtype=torch.float64))
    torch.testing.assert_close(quantiles, torch.linspace(math.log(0.001), math.log(0.1), 5, dtype=torch.float64), rtol=0, atol=0.05)


def test_a_seed_repeats_the_time_steps_and_another_does_not():
    first, again, other = (init_dt(4, 8, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dt_min": 0.0}, "got dt_min=0.0"),
        ({"dt_min": 0.2}, "got dt_min=0.2 and dt_max=0.1"),
        ({"dt_min": 1e-5, "dt_transform": "relu"}, "relu gives time steps above 0.0001"),
        ({"dt_transform": "square"}, "transform 'square' is unknown"),
        ({"dt_tie": False, "N": 5}, "got N=5"),
        ({"H": 0}, "H=0"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_arguments_that_cannot_work_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        init_dt(**{"H": 4, "N": 8, **options})


def test_time_steps_that_a_sigmoid_cannot_give_are_refused():
    with pytest.raises(InputError, match="sigmoid gives numbers below 1"):
        init_dt(4, 8, 0.5, 2.0, dt_transform="sigmoid", deterministic=True)
