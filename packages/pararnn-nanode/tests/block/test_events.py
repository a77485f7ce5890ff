"""Events that end a block before the end of its span."""

import math

import pytest
import torch

from pararnn.errors import ConfigError, DifferentiationError, InputError
from pararnn_nanode import NANODE, BucketPath, ConstantPath, DenseField

METHODS = [("midpoint", 2e-3), ("rk4", 1e-8), ("reversible_heun", 2e-3), ("alf", 2e-3), ("dopri5", 1e-6)]


def falling(method, **options):
    """A ball at height and speed `(y, v)` that falls with an acceleration of 2."""
    return NANODE(lambda t, x: torch.stack((x[..., 1], torch.full_like(x[..., 0], -2.0)), -1), 40, (0.0, 4.0), method=method, **options)


@pytest.mark.parametrize(("method", "error"), METHODS)
def test_the_time_of_an_event_is_found(method, error):
    solution = falling(method).solve(torch.tensor([4.0, 0.0]), event=lambda t, x: x[0])
    assert float(solution.event.detach()) == pytest.approx(2.0, abs=error)
    torch.testing.assert_close(solution.x, torch.tensor([[0.0, -4.0]]), rtol=0, atol=5 * error + 1e-9)
    assert solution.t.tolist() == [float(solution.event.detach())]


@pytest.mark.parametrize(("method", "error"), METHODS)
def test_the_time_of_an_event_has_the_gradient_of_its_formula(method, error):
    # The ball falls for sqrt(height) seconds.
    x = torch.tensor([4.0, 0.0], requires_grad=True)
    event = falling(method).solve(x, event=lambda t, x: x[0]).event
    (slope,) = torch.autograd.grad(event, x)
    torch.testing.assert_close(slope, torch.tensor([0.25, 0.5]), rtol=0, atol=5 * error)


@pytest.mark.parametrize("gradient", ["backprop", "checkpoint"])
def test_the_gradient_of_an_event_is_that_of_the_walk(gradient):
    path = ConstantPath((2, 2))
    with torch.no_grad():
        path.coefficients.copy_(torch.tensor([[[0.0, -2.0], [2.0, 0.0]]]))
    block = NANODE(DenseField(2, path, activation=None), 20, method="rk4", gradient=gradient)

    def run(x, weights):
        parameters = {"field.path.coefficients": weights}
        with torch.nn.utils.stateless._reparametrize_module(block, parameters):
            solution = block.solve(x, event=lambda t, x: x[0])
        return solution.event, solution.last

    x = torch.tensor([1.0, 0.2], requires_grad=True)
    assert torch.autograd.gradcheck(run, (x, path.coefficients.detach().requires_grad_()))


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_without_a_crossing_the_span_is_walked_to_its_end(method):
    block = falling(method)
    x = torch.tensor([100.0, 0.0])
    solution = block.solve(x, event=lambda t, x: x[0])
    assert solution.event is None
    assert torch.equal(solution.last, block(x))


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_asked_times_before_the_event_are_kept(method):
    solution = falling(method).solve(torch.tensor([4.0, 0.0]), [0.5, 1.0, 3.0], event=lambda t, x: x[0])
    torch.testing.assert_close(solution.t, torch.tensor([0.5, 1.0, 2.0]), rtol=0, atol=1e-6)
    torch.testing.assert_close(solution.x[:, 0], torch.tensor([3.75, 3.0, 0.0]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_the_first_of_several_values_ends_it(method):
    solution = falling(method).solve(torch.tensor([4.0, 0.0]), event=lambda t, x: torch.stack((x[0], x[0] - 3.0)))
    assert float(solution.event.detach()) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_an_event_of_time_alone(method):
    solution = falling(method).solve(torch.tensor([4.0, 0.0]), event=lambda t, x: t - math.sqrt(2))
    assert float(solution.event.detach()) == pytest.approx(math.sqrt(2), abs=1e-9)


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_an_event_is_met_when_time_runs_backwards(method):
    block = NANODE(lambda t, x: torch.ones_like(x), 40, (0.0, -4.0), method=method)
    assert float(block.solve(torch.ones(1), event=lambda t, x: x[0] + 0.5).event.detach()) == pytest.approx(-1.5, abs=1e-9)


def test_nothing_beyond_the_span_is_asked_for():
    times = []
    block = NANODE(lambda t, x: times.append(float(t)) or torch.ones_like(x), 10, method="dopri5")
    block.solve(torch.zeros(1), event=lambda t, x: x[0] - 5)
    assert max(times) <= 1.0


def test_inputs_of_the_step_act_until_the_event():
    block = NANODE(DenseField(1, ConstantPath((1, 1)), input=ConstantPath((1, 1)), activation=None), 4)
    with torch.no_grad():
        block.field.path.coefficients.zero_()
        block.field.input.coefficients.fill_(1.0)
    u = torch.tensor([1.0, 2.0, 4.0, 8.0]).view(4, 1, 1)
    # Heights 0.25, 0.75, 1.75 after the first three steps: half way through the third one.
    solution = block.solve(torch.zeros(1, 1), u=u, event=lambda t, x: x[0, 0] - 1.25)
    assert float(solution.event.detach()) == pytest.approx(0.625)


def test_weights_in_pieces_have_events_in_any_piece():
    path = BucketPath((1, 1), 2)
    with torch.no_grad():
        path.coefficients.copy_(torch.tensor([1.0, -1.0]).view(2, 1, 1))
    block = NANODE(DenseField(1, path, activation=None), 100, method="rk4")
    event = block.solve(torch.ones(1), event=lambda t, x: torch.stack((x[0] - 2, x[0] - math.exp(0.2)))[1:] * (t - 0.5)).event
    assert float(event.detach()) == pytest.approx(0.2, abs=1e-8)


def test_samples_with_times_of_their_own_are_refused():
    for method in ("rk4", "dopri5"):
        with pytest.raises(InputError, match="all samples at one time"):
            falling(method).solve(torch.ones(2, 2), torch.ones(2, 1), event=lambda t, x: x[0, 0])


def test_an_event_of_a_parallel_solve_is_refused():
    with pytest.raises(ConfigError, match="parallel=None"):
        falling("rk4", parallel="picard").solve(torch.ones(2), event=lambda t, x: x[0])


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_an_event_that_has_no_derivative_is_an_error_also_near_the_end_of_the_span(method):
    # Near the end what is left of the span is smaller than the value of the event, which is not the one that happens.
    block = NANODE(lambda t, x: x, 100, (0.0, 0.8), method=method)
    with pytest.raises(DifferentiationError, match="has no derivative"):
        block.solve(torch.tensor([1.0], requires_grad=True), event=lambda t, x: (x[0] > 2.0).double() - 0.5)
    with torch.no_grad():
        found = block.solve(torch.tensor([1.0]), event=lambda t, x: (x[0] > 2.0).double() - 0.5)
    assert float(found.event) == pytest.approx(math.log(2.0), abs=1e-6)


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_an_event_near_the_end_of_the_span_has_its_own_gradient(method):
    block = NANODE(lambda t, x: x, 100, (0.0, 0.7), method=method)
    x = torch.tensor([1.0], requires_grad=True)
    found = block.solve(x, event=lambda t, x: 1e3 * (x[0] - 2.0))
    torch.testing.assert_close(torch.autograd.grad(found.event, x)[0], torch.tensor([-1.0]), rtol=1e-5, atol=0.0)
