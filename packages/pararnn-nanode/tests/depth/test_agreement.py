"""A solve in parallel over depth gives the states and the gradients of the walk."""

import pytest
import torch

from pararnn_nanode.depth.solve import integrate
from pararnn_nanode.fields.dense import DenseField
from pararnn_nanode.integrate import fixed
from pararnn_nanode.integrate.schedule import schedule
from pararnn_nanode.paths.trigonometric import TrigPath

KINDS = ["dense", "dense with bias, one state", "dense, silu, two batch dimensions", "linear", "buckets", "diagonal", "convolution", "function"]
# Newton's corrections need a field that says what its Jacobian looks like.
UNSTRUCTURED = ("convolution", "function")
PAIRS = [(kind, way) for kind in KINDS for way in ("newton", "picard", "windowed") if way != "newton" or kind not in UNSTRUCTURED]
STATES, GRADIENTS = 1e-10, 1e-9


@pytest.mark.parametrize(("kind", "parallel"), PAIRS)
def test_every_field_is_solved_as_it_is_walked(equations, compare, path, kind, parallel):
    field, x = equations[kind]
    states, gradients, solution = compare(field, x, path(100), parallel=parallel)
    assert solution.converged
    assert solution.iterations > 1
    assert states < STATES
    assert gradients < GRADIENTS


@pytest.mark.parametrize("parallel", ["newton", "picard", "windowed"])
@pytest.mark.parametrize("method", ["midpoint", "heun", "rk4", "rk4_38"])
def test_every_runge_kutta_method_is_solved_as_it_is_walked(dense, compare, path, method, parallel):
    states, gradients, _ = compare(dense(), torch.randn(3, 5), path(90), method=method, parallel=parallel)
    assert states < STATES
    assert gradients < GRADIENTS


TIMES = {
    "the end": 1.0,
    "backwards": -0.7,
    "forth, back and twice the same": [0.5, 0.2, 0.2, 1.0],
    "another for each sample": torch.tensor([[0.5, 1.0], [0.2, 0.3]]),
}


@pytest.mark.parametrize("parallel", ["newton", "picard", "windowed"])
@pytest.mark.parametrize("name", TIMES)
def test_all_kinds_of_times_are_solved_as_they_are_walked(dense, compare, name, parallel):
    plan = schedule(TIMES[name], steps=97, span=(0.0, 1.0))
    states, gradients, solution = compare(dense(), torch.randn(2, 5), plan, parallel=parallel)
    assert solution.converged
    assert states < STATES
    assert gradients < GRADIENTS


@pytest.mark.parametrize("parallel", ["newton", "picard", "windowed"])
@pytest.mark.parametrize("times", [[0.3, 0.9], [[0.3, 0.9], [0.5, 0.4]]], ids=["shared", "of each sample"])
def test_gradients_reach_times(dense, times, parallel):
    field, x = dense(), torch.randn(2, 5)
    found = []
    for solve in (fixed.integrate, lambda *args: integrate(*args, parallel=parallel)):
        t = torch.tensor(times, requires_grad=True)
        found.append(torch.autograd.grad(solve(field, x, schedule(t, steps=80, span=(0.0, 1.0))).x.square().sum(), t)[0])
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("parallel", ["newton", "picard", "windowed"])
@pytest.mark.parametrize("shape", [(2, 3), (80, 2, 3)], ids=["held for all times", "held for each step"])
def test_inputs_and_their_gradients_are_those_of_the_walk(dense, compare, path, shape, parallel):
    field = dense(input=TrigPath((5, 3), 1))
    states, gradients, _ = compare(field, torch.randn(2, 5), path(80), u=torch.randn(shape), method="heun", parallel=parallel)
    assert states < STATES
    assert gradients < GRADIENTS


@pytest.mark.parametrize("parallel", ["newton", "picard", "windowed"])
def test_inputs_that_are_noise_cost_iterations_and_no_accuracy(dense, compare, path, parallel):
    field = dense(input=TrigPath((5, 3), 1))
    states, gradients, solution = compare(field, torch.randn(2, 5), path(200), u=10 * torch.randn(200, 2, 3), parallel=parallel)
    assert solution.converged
    assert states < STATES
    assert gradients < GRADIENTS


@pytest.mark.parametrize("parallel", ["newton", "picard", "windowed"])
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 17])
def test_few_steps_are_solved_where_it_is_asked_for(dense, compare, path, steps, parallel):
    states, gradients, _ = compare(dense(), torch.randn(2, 5), path(steps), parallel=parallel)
    assert states < STATES
    assert gradients < GRADIENTS


@pytest.mark.parametrize("parallel", ["newton", "picard", "windowed"])
def test_single_precision_agrees_to_rounding(dense, compare, path, parallel):
    field = dense(32).float()
    states, gradients, solution = compare(field, torch.randn(1, 32, dtype=torch.float32), path(1024), parallel=parallel)
    assert solution.converged
    assert states < 1e-5
    assert gradients < 1e-4


def test_no_steps_give_the_initial_state(dense):
    x = torch.randn(2, 5)
    solution = integrate(dense(), x, schedule([0.0], steps=10, span=(0.0, 1.0)), parallel="newton")
    torch.testing.assert_close(solution.x, x.unsqueeze(0))


@pytest.mark.parametrize("parallel", ["newton", "picard"])
def test_complex_states_are_solved_as_they_are_walked(path, parallel):
    field = DenseField(5, TrigPath((5, 5), 1, dtype=torch.complex128), activation=None)
    x = torch.randn(2, 5, dtype=torch.complex128, requires_grad=True)
    found = []
    for solve in (fixed.integrate, lambda *args: integrate(*args, parallel=parallel)):
        states = solve(field, x, path(80)).x
        found.append((states.detach(), *torch.autograd.grad(states[-1].abs().square().sum(), [x, field.path.coefficients])))
    for ours, truth in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-9)
