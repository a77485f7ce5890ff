from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.testing import assert_close

from pararnn.errors import ConfigError, DTypeError, ShapeError
from pararnn_cola import LeakyLayer, RNNLayer


def layers(leak, activation="tanh"):
    generator = torch.Generator().manual_seed(1)
    return LeakyLayer(3, 4, leak=leak, activation=activation, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("leak", [0.0, 0.6, 1.0, torch.tensor([0.0, 0.2, 0.9, 1.0])], ids=["0", "0.6", "1", "per unit"])
def test_states_follow_the_equation_written_out_unit_by_unit(leak):
    layer, u = layers(leak), torch.randn(6, 2, 3, dtype=torch.float64)
    state = layer.zero_state(2)
    h, x = torch.zeros(2, 4, dtype=torch.float64), torch.zeros(2, 4, dtype=torch.float64)
    for step in range(6):
        state, _ = layer(u[step], state)
        following = torch.zeros_like(x)
        for sample in range(2):
            for unit in range(4):
                share = float(leak[unit]) if isinstance(leak, torch.Tensor) else leak
                fed = (layer.weight_ih[unit] * u[step, sample]).sum() + layer.bias[unit]
                following[sample, unit] = share * x[sample, unit] + (layer.weight_hh[unit] * h[sample]).sum() + fed
        x = following.detach()
        h = torch.tanh(x)
        # A leak of float32 makes 0.2 and 0.9 what they are in float32.
        assert_close(state, (h, x), rtol=1e-12, atol=1e-12)


def test_without_a_leak_it_is_the_vanilla_layer():
    leaky = layers(0.0)
    vanilla = RNNLayer(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    u, h = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    for step in u:
        assert_close(leaky(step, (h, torch.randn_like(h)))[0][0], vanilla(step, (h,))[0][0], rtol=0, atol=0)


def test_a_state_passed_in_is_not_written_to():
    layer = layers(0.5)
    state = tuple(torch.randn(2, 4, dtype=torch.float64) for _ in range(2))
    kept = tuple(part.clone() for part in state)
    layer.observe(torch.randn(2, 3, dtype=torch.float64), state)
    assert_close(state, kept, rtol=0, atol=0)


def test_leaks_of_each_unit_are_a_buffer_that_is_saved_but_not_learned():
    leak = torch.tensor([0.1, 0.2, 0.3, 0.4])
    layer = layers(leak)
    leak.zero_()
    assert_close(layer.state_dict()["leak"], torch.tensor([0.1, 0.2, 0.3, 0.4]).double(), rtol=0, atol=0)
    assert "leak" not in dict(layer.named_parameters())
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert_close(dict(twin.state_dict()), dict(layer.state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("leak", "error", "match"),
    [
        (1.5, ConfigError, r"leak=1\.5"),
        (-0.1, ConfigError, r"leak=-0\.1"),
        (float("nan"), ConfigError, "leak=nan"),
        (torch.tensor([0.1, 0.2, 0.3, 2.0]), ConfigError, r"leaks from 0\.1.* to 2\.0"),
        (torch.tensor([0.1, 0.2]), ShapeError, r"\(2,\)"),
        (torch.tensor([1, 0, 1, 0]), DTypeError, "int64"),
    ],
    ids=["above 1", "negative", "nan", "tensor above 1", "too few", "integers"],
)
def test_leaks_outside_what_they_mean_are_refused(leak, error, match):
    with pytest.raises(error, match=match):
        layers(leak)


def test_an_input_of_the_wrong_width_is_refused_with_both_widths():
    layer = layers(0.5)
    with pytest.raises(ShapeError, match=r"3 features.*\(2, 5\)"):
        layer(torch.zeros(2, 5, dtype=torch.float64), layer.zero_state(2))
