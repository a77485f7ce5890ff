"""Closed forms and numbers computed elsewhere, to the last digits of float64."""

import math

import pytest
import torch

from pararnn_nanode.integrate.fixed import integrate
from pararnn_nanode.integrate.schedule import schedule
from pararnn_nanode.paths.bucket import BucketPath

UNIT = (0.0, 1.0)
SLOPES = {"euler": 1, "midpoint": 2, "heun": 2, "rk4": 4, "rk4_38": 4, "reversible_heun": 2, "alf": 2}
ERRORS_AT_40 = {"euler": 1.1380e-2, "midpoint": 4.390e-5, "heun": 9.439e-5, "rk4": 9.301e-10, "rk4_38": 3.282e-9}
TEN_STEPS = {
    "euler": (1.535714175359307, -0.890140684080674),
    "midpoint": (1.529947691790700, -0.889463823168873),
    "heun": (1.529570586952666, -0.884481464856111),
    "rk4": (1.529570860167421, -0.888919988753596),
    "rk4_38": (1.529512801523123, -0.888712757828302),
}


def slope_of(error, steps=(40, 80, 160)):
    errors = [error(count) for count in steps]
    return math.log2(errors[-2] / errors[-1])


@pytest.mark.parametrize("method", SLOPES)
def test_errors_fall_with_the_order_of_the_method_where_weights_do_not_commute(method, non_commuting, start):
    field, exact = non_commuting
    slope = slope_of(lambda steps: float((integrate(field, start, schedule(steps=steps, span=UNIT), method=method).last - exact).norm()))
    assert slope == pytest.approx(SLOPES[method], abs=0.06)


@pytest.mark.parametrize("method", ERRORS_AT_40)
def test_errors_at_forty_steps_are_those_of_the_textbook_methods(method, non_commuting, start):
    field, exact = non_commuting
    found = integrate(field, start, schedule(steps=40, span=UNIT), method=method).last
    assert float((found - exact).norm()) == pytest.approx(ERRORS_AT_40[method], rel=1e-3)


@pytest.mark.parametrize("method", TEN_STEPS)
def test_ten_steps_of_a_nonlinear_equation_give_the_known_numbers(method, trig_equation):
    x = torch.tensor([1.0, -1.0], dtype=torch.float64)
    found = integrate(trig_equation(2 * math.pi), x, schedule(steps=10, span=UNIT), method=method).last
    torch.testing.assert_close(found, torch.tensor(TEN_STEPS[method], dtype=torch.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("omega", "exact"), [(1.0, (1.362524852250522, -1.603043140348275)), (2 * math.pi, (1.529450593287810, -0.888470504425789))], ids=["1", "2pi"]
)
def test_many_steps_reach_the_solution_of_a_nonlinear_equation(omega, exact, trig_equation):
    x = torch.tensor([1.0, -1.0], dtype=torch.float64)
    found = integrate(trig_equation(omega), x, schedule(steps=1500, span=UNIT), method="rk4").last
    torch.testing.assert_close(found, torch.tensor(exact, dtype=torch.float64), rtol=0, atol=2e-12)


def test_the_solution_and_its_gradient_are_exact_where_weights_commute(commuting, start):
    field, exact = commuting
    x = start.requires_grad_()
    found = integrate(field, x, schedule(steps=1000, span=UNIT), method="rk4").last
    torch.testing.assert_close(found.detach(), exact, rtol=0, atol=1e-12)
    (by_x,) = torch.autograd.grad(found.square().sum(), x)
    torch.testing.assert_close(
        by_x, torch.tensor([1.838066962467521, -0.783774678097430, -0.001922308444340], dtype=torch.float64), rtol=0, atol=4e-12
    )


def test_the_derivative_by_a_scale_of_the_weights_is_exact(commuting, given, start):
    scale = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    weights = commuting[0].given
    found = integrate(given(lambda times: scale * weights(times)), start, schedule(steps=1000, span=UNIT), method="rk4").last
    (by_scale,) = torch.autograd.grad(found.square().sum(), scale)
    assert float(by_scale) == pytest.approx(-0.398231678945435, abs=1e-12)


def test_the_sensitivity_of_growth_is_exact(given):
    rate = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    field = given(lambda times: rate.expand(*times.shape, 1, 1))
    found = integrate(field, torch.tensor([2.0], dtype=torch.float64), schedule(steps=500, span=UNIT), method="rk4").last
    assert float(torch.autograd.grad(found.sum(), rate)[0]) == pytest.approx(3.297442541400256, abs=1e-11)


@pytest.mark.parametrize("method", ["rk4", "reversible_heun", "alf"])
def test_pieces_of_weights_are_held_within_steps_so_that_the_order_survives_jumps(method, start, network):
    path = BucketPath((3, 3), buckets=2).double()
    field = network(3, path)
    field.bias, field._activate = None, None
    first, second = path.coefficients.detach()
    exact = torch.linalg.matrix_exp(second / 2) @ torch.linalg.matrix_exp(first / 2) @ start

    def error(steps):
        return float((integrate(field, start[None], schedule(steps=steps, span=UNIT), method=method).last[0] - exact).detach().norm())

    slope = slope_of(error, steps=(10, 20, 40))
    assert slope == pytest.approx(SLOPES[method], abs=0.2)


def test_a_walk_back_in_time_with_pieces_returns_to_the_start(start, network):
    field = network(3, BucketPath((3, 3), buckets=4).double())
    ahead = integrate(field, start[None], schedule(steps=200, span=UNIT), method="rk4").last
    back = integrate(field, ahead, schedule(steps=200, span=(1.0, 0.0)), method="rk4").last
    torch.testing.assert_close(back, start[None], rtol=0, atol=1e-8)


def test_a_bucket_a_step_is_a_residual_network_bit_for_bit(network, batch):
    field = network(4, BucketPath((4, 4), buckets=7).double())
    field.bias = None
    x = batch
    for weight in field.path.coefficients:
        x = torch.add(x, torch.tanh(x @ weight.T), alpha=1 / 7)
    found = integrate(field, batch, schedule(steps=7, span=UNIT)).last
    torch.testing.assert_close(found, x, rtol=0, atol=0)
