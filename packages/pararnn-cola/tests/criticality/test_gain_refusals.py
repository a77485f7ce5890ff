"""What near-critical initialisation refuses, and what it says when it does."""

import math

import pytest
import torch
from torch import nn

from pararnn.errors import ConfigError, DTypeError
from pararnn_cola import (
    CoverageError,
    RNNLayer,
    gain_curve,
    near_critical,
    stack_networks,
)

WIDE = torch.float64


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "newton"},
        {"probe": 1.0},
        {"probe": math.inf},
        {"target": math.nan},
        {"tolerance": 0.0},
        {"tolerance": "loose"},
        {"gain_range": (0.0, 10.0)},
        {"gain_range": (2.0, 10.0)},
        {"gain_range": (0.1, 1.1)},
        {"gain_range": (0.1, math.inf)},
        {"gain_range": "ab"},
        {"gain_range": (0.1, 1.0, 10.0)},
        {"gain_range": ("a", "b")},
        {"weight": nn.Parameter(torch.eye(2))},
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused(network, drive, options):
    with pytest.raises(ConfigError):
        near_critical(network(state_size=4), drive(60), **options)


def test_a_range_that_begins_at_one_is_refused_with_the_reason(network, drive):
    with pytest.raises(ConfigError, match=r"begins between 0 and 1 .* a search goes both ways"):
        near_critical(network(state_size=4), drive(60), gain_range=(1, 10))


def test_a_weight_of_another_module_is_refused(drive):
    layer, other = (RNNLayer(3, 4, generator=torch.Generator().manual_seed(seed), dtype=WIDE) for seed in (0, 1))
    before = other.weight_hh.detach().clone()
    with pytest.raises(ConfigError, match="no parameter of the RNNLayer"):
        near_critical(layer, drive(60), weight=other.weight_hh)
    with pytest.raises(ConfigError, match="no parameter of the RNNLayer"):
        gain_curve(layer, drive(60), weight=other.weight_hh)
    assert torch.equal(other.weight_hh, before)
    with pytest.raises(ConfigError, match="of type str; give the parameter itself"):
        near_critical(layer, drive(60), weight="weight_hh")


def test_inputs_that_are_no_tensor_are_refused(network):
    with pytest.raises(DTypeError, match="got list"):
        near_critical(network(state_size=4), [[[0.0] * 3] * 60])


def test_a_step_that_ends_beside_the_target_says_what_goes_on(network, drive):
    report = near_critical(network(), drive(100), mode="unit")
    assert not report.converged
    assert 'as one step seldom does; mode="secant" goes on' in str(report)


def test_ensembles_are_initialised_one_by_one(network, drive):
    members = [network(state_size=4, seed=seed) for seed in range(3)]
    joined = stack_networks(members)
    before = joined.recurrent[0].weight_hh.detach().clone()
    for source in (joined, joined.recurrent[0]):
        with pytest.raises(CoverageError, match="one by one"):
            near_critical(source, drive(60))
    assert torch.equal(joined.recurrent[0].weight_hh, before)


def test_zero_weights_are_refused(network, drive):
    made = network(state_size=4, gain=0.0)
    with pytest.raises(ConfigError, match="are zero"):
        near_critical(made, drive(60))


def test_what_has_no_recurrent_weights_is_refused(drive):
    with pytest.raises(ConfigError, match="weight="):
        near_critical(nn.Linear(3, 3), drive(60))
    linear = nn.Linear(3, 3)
    with pytest.raises(CoverageError):
        near_critical(linear, drive(60), weight=linear.weight)
