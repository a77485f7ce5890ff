"""Sampled steps against the matrix exponential and the dense trapezoidal rule."""

import copy

import pytest
import torch

from pararnn.errors import ConfigError
from pararnn_s4.state_space.diagonal import DiagonalSSM
from pararnn_s4.state_space.discretisation import bilinear, growth, sample, zoh

RATES = torch.tensor([-0.5 + 3j, -0.5 + 1303.0j, -1e-4 + 1e-4j, -1e-9 + 0j, 0j, -40.0 + 0j, -1e4 - 1e4j], dtype=torch.complex128)


@pytest.mark.parametrize("dt", [1e-4, 1e-2, 0.3])
def test_zero_order_hold_equals_the_augmented_matrix_exponential(dt, matrix_exponential):
    sampled = zoh(RATES[:6], torch.tensor(dt, dtype=torch.float64))
    for index, rate in enumerate(RATES[:6].tolist()):
        augmented = matrix_exponential(torch.tensor([[rate, 1.0], [0.0, 0.0]], dtype=torch.complex128) * dt)
        torch.testing.assert_close(sampled.transition[index], augmented[0, 0], rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(sampled.gain[index], augmented[0, 1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128, torch.float32])
def test_a_rate_of_zero_has_the_time_step_as_its_gain(dtype):
    dt = torch.tensor([0.1, 1e-3], dtype=torch.float64 if dtype != torch.float32 else torch.float32)
    rate = torch.zeros(2, dtype=dtype, requires_grad=True)
    sampled = zoh(rate, dt)
    torch.testing.assert_close(sampled.gain, dt.to(dtype), rtol=0, atol=0)
    sampled.gain.real.sum().backward()
    torch.testing.assert_close(rate.grad, (dt**2 / 2).to(dtype))


@pytest.mark.parametrize("exponent", [-12, -4, -1.001, -0.999, 0, 1])
def test_growth_and_its_derivative_are_accurate_at_every_scale(exponent):
    x = torch.tensor([10.0**exponent], dtype=torch.float64, requires_grad=True)
    terms = 60
    factorials = torch.cumprod(torch.arange(1, terms + 2, dtype=torch.float64), dim=0)
    powers = x.detach() ** torch.arange(terms, dtype=torch.float64)
    value = growth(x, torch.exp(x))
    (slope,) = torch.autograd.grad(value, x)
    index = torch.arange(terms, dtype=torch.float64)
    torch.testing.assert_close(value, (powers / factorials[:terms]).sum().reshape(1), rtol=5e-15, atol=0)
    expected = (index[1:] * powers[:-1] / factorials[1:terms]).sum().reshape(1)
    torch.testing.assert_close(slope, expected, rtol=2e-13, atol=0)


@pytest.mark.parametrize("disc", ["zoh", "bilinear"])
def test_the_logarithm_gives_the_powers_of_the_transition(disc):
    sampled = sample(RATES[:6], torch.tensor(0.05, dtype=torch.float64), disc)
    repeated = torch.ones_like(sampled.transition)
    for power in range(33):
        torch.testing.assert_close(torch.exp(power * sampled.log), repeated, rtol=1e-12, atol=1e-14)
        repeated = repeated * sampled.transition


def test_the_trapezoidal_step_solves_its_implicit_equation():
    dt = torch.tensor(0.05, dtype=torch.float64)
    transition, _, gain = bilinear(RATES, dt)
    state, drive = torch.tensor(0.3 - 0.2j, dtype=torch.complex128), torch.tensor(1.5, dtype=torch.complex128)
    following = transition * state + gain * drive
    torch.testing.assert_close(following - state, dt * (RATES * (state + following) / 2 + drive), rtol=1e-11, atol=1e-12)


def test_a_vanishing_trapezoidal_transition_stays_finite_with_its_gradient():
    rate = torch.tensor([-20.0], dtype=torch.float64, requires_grad=True)
    sampled = bilinear(rate, torch.tensor(0.1, dtype=torch.float64))
    assert sampled.transition.item() == 0.0
    powers = torch.exp(torch.arange(4) * sampled.log).real
    torch.testing.assert_close(powers, torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64), rtol=0, atol=1e-25)
    (slope,) = torch.autograd.grad(powers[1], rate, retain_graph=True)
    # The derivative of (1 + x) / (1 - x) at -1, times dt / 2.
    torch.testing.assert_close(slope, torch.tensor([0.5 * 0.05], dtype=torch.float64), rtol=1e-13, atol=0)
    (powers.sum() + sampled.gain.sum()).backward()
    assert torch.isfinite(rate.grad).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("is_real", [True, False], ids=["real", "complex"])
def test_a_kernel_of_vanishing_trapezoidal_transitions_has_the_gradient_of_differences(is_real, dtype):
    form = {"is_real": True, "init": "diag-real"} if is_real else {}
    ssm = DiagonalSSM(1, d_state=2, disc="bilinear", real_transform="none", dt_transform="none", dtype=dtype, **form)
    with torch.no_grad():
        ssm.inv_dt.fill_(2.0)
        ssm.A_real.fill_(1.0)
        if not is_real:
            ssm.A_imag.fill_(0.0)
    near = copy.deepcopy(ssm).double()
    kernels = []
    for rate in (1 + 1e-6, 1 - 1e-6):
        with torch.no_grad():
            near.A_real.fill_(rate)
            kernels.append(near(4)[0, 0])
    differences = (kernels[0] - kernels[1]) / 2e-6
    for lag, expected in enumerate(differences):
        slope = torch.autograd.grad(ssm(4)[0, 0, lag], ssm.A_real)[0].sum()
        torch.testing.assert_close(slope.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("disc", ["zoh", "bilinear"])
def test_extreme_rates_and_time_steps_stay_finite_and_do_not_grow(disc):
    rate = RATES.clone().requires_grad_()
    dt = torch.tensor(10.0, dtype=torch.float64, requires_grad=True)
    sampled = sample(rate, dt, disc)
    assert (sampled.transition.abs() <= 1 + 1e-15).all()
    (sampled.transition.real.sum() + sampled.gain.real.sum() + sampled.log.real.sum()).backward()
    assert torch.isfinite(torch.view_as_real(rate.grad)).all()
    assert torch.isfinite(dt.grad)


def test_an_unknown_discretisation_is_refused_by_name():
    with pytest.raises(ConfigError, match="'dss'"):
        sample(RATES, torch.tensor(0.1), "dss")
