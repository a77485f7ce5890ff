"""Precision: single, half, double, autocast, and parameters at their extremes."""

import copy

import pytest
import torch

from pararnn_s4 import S4, S4D

# Tolerances in single precision are relative to the largest number that is compared: rounding is of sums of numbers as large.
SINGLE = {"d_state": 64, "dtype": torch.float32, "dt_min": 0.001, "dt_max": 0.1}


def close_in_single(actual, expected, tolerance):
    assert (actual - expected).abs().max() <= tolerance * expected.abs().max()


def test_single_precision_steps_agree_with_the_convolution(make, kind, sequences, walk):
    layer, x = make(kind, **SINGLE), sequences(length=512, batch=1, dtype=torch.float32)
    with torch.no_grad():
        outputs, _ = walk(layer.decoder(), x, layer.init_state(1))
        close_in_single(outputs, layer(x), 5e-6)


def test_a_random_state_acts_alike_in_steps_of_single_precision(make, kind, sequences, random_state, walk):
    layer, x = make(kind, **SINGLE), sequences(length=512, batch=1, dtype=torch.float32)
    start = random_state(layer, batch=1)
    with torch.no_grad():
        y, state = layer(x, start, return_state=True)
        outputs, after = walk(layer.decoder(), x, start)
        close_in_single(outputs, y, 1e-5)
        close_in_single(after, state, 3e-5)


def test_single_precision_chunks_agree_with_the_whole(make, kind, sequences):
    layer, x = make(kind, **SINGLE), sequences(length=512, batch=1, dtype=torch.float32)
    with torch.no_grad():
        first, state = layer(x[:, :200], return_state=True)
        close_in_single(torch.cat((first, layer(x[:, 200:], state)), 1), layer(x), 5e-6)


def test_later_samples_do_not_change_earlier_outputs_in_single_precision(make, kind, sequences):
    layer, x = make(kind, **SINGLE), sequences(length=64, dtype=torch.float32)
    changed = torch.cat((x[:, :40], sequences(length=24, seed=9, dtype=torch.float32)), 1)
    torch.testing.assert_close(layer(changed)[:, :40], layer(x)[:, :40], rtol=0, atol=1e-6)


def test_without_activations_it_is_linear_and_invariant_in_time_in_single_precision(make, kind, sequences):
    layer = make(kind, activation=None, final_act=None, **SINGLE)
    x, other = sequences(dtype=torch.float32), sequences(seed=5, dtype=torch.float32)
    close_in_single(layer(2 * x - 3 * other), 2 * layer(x) - 3 * layer(other), 1e-6)
    late = torch.cat((torch.zeros(3, 4, 8), x), 1)
    close_in_single(layer(late)[:, 4:], layer(x), 2e-6)


@pytest.mark.parametrize(
    "build", [lambda kind, make: make(kind), lambda kind, make: make(kind, dtype=torch.float32).double()], ids=["built", "converted"]
)
def test_double_precision_is_double_throughout(make, kind, sequences, walk, close, build):
    layer, x = build(kind, make), sequences()
    y, state = layer(x, return_state=True)
    assert y.dtype == torch.float64
    assert state.dtype == (torch.float64 if layer.ssm.is_real else torch.complex128)
    close(walk(layer, x, layer.init_state(3))[0], y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_modules_run_the_state_space_in_single(make, kind, sequences, dtype):
    half, x = make(kind, dtype=torch.float32, gate=2, bottleneck=2).to(dtype), sequences(length=200, dtype=torch.float32).to(dtype)
    exact = copy.deepcopy(half).double()
    y, state = half(x, return_state=True)
    expected, last = exact(x.double(), return_state=True)
    assert (y.dtype, state.dtype) == (dtype, torch.float32 if half.ssm.is_real else torch.complex64)
    torch.testing.assert_close(y.double(), expected, rtol=0.02, atol=0.02)
    torch.testing.assert_close(state.to(last.dtype), last, rtol=0.02, atol=0.02)
    stepped, _ = half.step(x[:, 0], half.init_state(3))
    torch.testing.assert_close(stepped.double(), expected[:, 0], rtol=0.02, atol=0.02)
    y.float().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in half.parameters())


def test_autocast_runs_the_state_space_in_single_precision(make, kind, sequences):
    layer, x = make(kind, dtype=torch.float32, activation=None, final_act=None), sequences(dtype=torch.float32)
    expected = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = layer(x, return_state=True)
        stepped, _ = layer.step(x[:, 0], layer.init_state(3))
    torch.testing.assert_close(y, expected, rtol=0, atol=0)
    torch.testing.assert_close(stepped, expected[:, 0], rtol=0, atol=1e-5)
    assert state.dtype in (torch.complex64, torch.float32)


def test_autocast_trains_a_whole_layer(make, family, sequences):
    layer, x = make(family, dtype=torch.float32, gate=2), sequences(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
        half = layer(x.bfloat16())
    assert y.dtype == half.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), layer(x), rtol=0.05, atol=0.05)
    y.float().square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("steps", [-25.0, -12.0, 3.0, 12.0], ids="log dt {}".format)
@pytest.mark.parametrize("decay", [-20.0, 0.0, 6.0], ids="log decay {}".format)
def test_extreme_parameters_give_finite_outputs_and_gradients(make, family, sequences, dtype, steps, decay):
    layer, x = make(family, dtype=dtype), sequences(length=64, dtype=dtype)
    with torch.no_grad():
        layer.ssm.inv_dt.fill_(steps)
        layer.ssm.A_real.fill_(decay)
    y, state = layer(x, layer.init_state(3), return_state=True)
    (y.square().mean() + state.abs().square().mean()).backward()
    for tensor in (y, torch.view_as_real(state), *(parameter.grad for parameter in layer.parameters())):
        assert tensor.isfinite().all()


def test_a_state_space_without_decay_or_frequency_is_an_integrator(sequences, close):
    layer = S4D(8, 4, dtype=torch.float64, activation=None, final_act=None, real_transform="none", dt_min=0.1, dt_max=0.1)
    with torch.no_grad():
        layer.ssm.A_real.zero_()
        layer.ssm.A_imag.zero_()
        layer.D.zero_()
        weight = 2 * torch.view_as_complex(layer.ssm.C * 1.0).mul(torch.view_as_complex(layer.ssm.B * 1.0)).sum(-1).real
    x = sequences()
    close(layer(x), 0.1 * weight * x.cumsum(1))


@pytest.mark.parametrize("layer", [S4, S4D])
def test_long_sequences_stay_finite_in_single_precision(layer):
    torch.manual_seed(0)
    module = layer(2, 64)
    with torch.no_grad():
        assert module(torch.randn(1, 1 << 16, 2)).isfinite().all()
