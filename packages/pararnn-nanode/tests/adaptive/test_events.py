"""Integrations that an event ends."""

import math

import pytest
import torch

from pararnn.errors import ConfigError, DifferentiationError, InputError
from pararnn_nanode import StepUnderflowError, odeint, odeint_adjoint, odeint_event, odeint_solution
from pararnn_nanode.events import crossing


class Fall(torch.nn.Module):
    """A stone with height and speed."""

    def __init__(self):
        super().__init__()
        self.gravity = torch.nn.Parameter(torch.tensor(9.8))

    def forward(self, t, state):
        return state[1], -self.gravity * torch.ones_like(state[1])


def ground(t, state):
    return state[0]


WAYS = {
    "dopri5": {},
    "checkpoint": {"gradient": "checkpoint"},
    "adjoint": {"odeint_interface": odeint_adjoint},
    "rk4": {"method": "rk4", "options": {"step_size": 0.1}},
    "midpoint": {"method": "midpoint", "options": {"step_size": 0.1}, "gradient": "checkpoint"},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_time_and_state_of_an_event_depend_on_everything(way):
    fall = Fall()
    height, t0 = torch.tensor(10.0, requires_grad=True), torch.tensor(0.5, requires_grad=True)
    event_t, (heights, speeds) = odeint_event(fall, (height, torch.zeros(())), t0, event_fn=ground, **way)
    exact = t0 + (2 * height / fall.gravity).sqrt()
    inputs = (fall.gravity, height, t0)
    assert event_t.item() == pytest.approx(exact.item(), abs=1e-12)
    assert heights[-1].item() == pytest.approx(0.0, abs=1e-12)
    torch.testing.assert_close(torch.autograd.grad(event_t, inputs, retain_graph=True), torch.autograd.grad(exact, inputs), rtol=1e-7, atol=1e-9)
    found = torch.autograd.grad(speeds[-1], inputs[:2])
    torch.testing.assert_close(found, torch.autograd.grad(-(2 * height * fall.gravity).sqrt(), inputs[:2]), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("way", ["dopri5", "checkpoint", "rk4"])
def test_second_derivatives_of_the_time_of_an_event_are_right(way):
    fall = Fall()
    height = torch.tensor(10.0, requires_grad=True)
    event_t, _ = odeint_event(fall, (height, torch.zeros(())), torch.tensor(0.0), event_fn=ground, **WAYS[way])
    exact = (2 * height / fall.gravity).sqrt()
    seconds = []
    for time in (event_t, exact):
        (first,) = torch.autograd.grad(time, fall.gravity, create_graph=True)
        seconds.append(torch.autograd.grad(first, (fall.gravity, height)))
    torch.testing.assert_close(seconds[0], seconds[1], rtol=1e-6, atol=1e-9)


def test_what_the_event_function_reads_gets_a_gradient():
    level = torch.tensor(0.25, requires_grad=True)
    event_t, _ = odeint(lambda t, y: -y, torch.ones(1), torch.tensor([0.0, 1.0]), event_fn=lambda t, y: y - level)
    assert event_t.item() == pytest.approx(math.log(4.0), abs=1e-7)
    assert torch.autograd.grad(event_t, level)[0].item() == pytest.approx(-4.0, rel=1e-6)


def test_a_ball_bounces_through_events():
    state, t = (torch.tensor(1.0), torch.tensor(0.0)), torch.tensor(0.0)
    times = []
    for _ in range(3):
        t, (heights, speeds) = odeint_event(Fall(), state, t, event_fn=ground)
        state = (heights[-1].detach(), -0.5 * speeds[-1].detach())
        times.append(t.item())
    first = math.sqrt(2 / 9.8)
    assert times == pytest.approx([first, 2 * first, 2.5 * first], abs=1e-9)


def test_of_several_events_the_first_counts_and_two_crossings_in_one_step_are_seen():
    def func(t, y):
        return torch.ones_like(y)

    event_t, states = odeint(func, torch.zeros(1), [0.0, 1.0], event_fn=lambda t, y: torch.cat((y - 3.0, 2.0 - y, (t - 5).reshape(1))))
    assert (event_t.item(), states[-1].item()) == pytest.approx((2.0, 2.0), abs=1e-9)
    event_t, _ = odeint(func, torch.zeros(1), [0.0, 1.0], event_fn=lambda t, y: (y - 0.5) * (y - 0.8), method="dopri5", options={"first_step": 1.0})
    assert event_t.item() == pytest.approx(0.5, abs=1e-9)


def test_time_may_go_back_to_an_event():
    solution = odeint_solution(lambda t, y: y, torch.ones(1), [0.0, -1.0], event_fn=lambda t, y: y - 0.5)
    assert solution.event.item() == pytest.approx(-math.log(2.0), abs=1e-7)
    assert "An event ended it at t = -0.693147" in solution.explain()


def test_an_event_that_is_there_at_the_start_ends_at_once():
    event_t, states = odeint(lambda t, y: y, torch.ones(1), [2.0, 3.0], event_fn=lambda t, y: y - 1.0)
    assert event_t.item() == 2.0
    assert torch.equal(states, torch.ones(2, 1))


def test_an_event_that_never_happens_is_an_error():
    with pytest.raises(StepUnderflowError, match="did not happen in max_steps = 50 steps"):
        odeint(lambda t, y: -y, torch.ones(1), [0.0, 1.0], method="dopri5", options={"max_num_steps": 50}, event_fn=lambda t, y: y + 1.0)
    with pytest.raises(StepUnderflowError, match="without an end"):
        odeint(lambda t, y: 0 * y, torch.ones(1), [0.0, 1.0], event_fn=lambda t, y: y + 1.0)


def test_a_solution_that_only_touches_the_event_has_no_derivative_there():
    speed = torch.tensor(1.0, requires_grad=True)
    with pytest.raises(DifferentiationError, match="has no derivative"):
        odeint(lambda t, y: speed * torch.ones_like(y), torch.zeros(1), [0.0, 1.0], event_fn=lambda t, y: torch.sign(0.5 - y))


def test_events_refuse_what_they_cannot_do():
    event = {"event_fn": lambda t, y: y - 0.5}
    with pytest.raises(ConfigError, match="step_size"):
        odeint(lambda t, y: -y, torch.ones(1), [0.0, 1.0], method="rk4", **event)
    with pytest.raises(InputError, match="got 3 times"):
        odeint(lambda t, y: -y, torch.ones(1), [0.0, 1.0, 2.0], **event)
    with pytest.raises(InputError, match="vmap"):
        torch.func.vmap(lambda y: odeint(lambda t, y: -y, y, [0.0, 1.0], **event)[1])(torch.ones(3, 1))


@pytest.mark.parametrize("way", ["dopri5", "rk4"])
def test_evaluations_until_an_event_are_counted(way):
    calls = []

    def func(t, y):
        calls.append(t)
        return -y

    found = odeint_solution(func, torch.ones(1), [0.0, 1.0], event_fn=lambda t, y: y - 0.25, **WAYS[way])
    assert found.nfe == len(calls)


@pytest.mark.parametrize("way", ["dopri5", "checkpoint", "adjoint", "rk4"])
@pytest.mark.parametrize("event_fn", [lambda t, y: (y > 2.0).double() - 0.5, lambda t, y: torch.sign(y - 2.0)], ids=["comparison", "sign"])
def test_an_event_function_without_a_derivative_is_an_error_where_a_gradient_could_be_asked_for(way, event_fn):
    def solve(y0):
        return odeint_event(lambda t, y: y, y0, torch.tensor(0.0), event_fn=event_fn, **WAYS[way])

    with pytest.raises(DifferentiationError, match="has no derivative"):
        solve(torch.ones(1, requires_grad=True))
    assert solve(torch.ones(1))[0].item() == pytest.approx(math.log(2.0), abs=1e-4)


def test_an_event_of_time_alone_is_differentiable_in_the_state():
    y0 = torch.ones(1, requires_grad=True)
    event_t, states = odeint_event(lambda t, y: y, y0, torch.tensor(0.0), event_fn=lambda t, y: t - 0.5)
    assert event_t.item() == pytest.approx(0.5, abs=1e-12)
    torch.testing.assert_close(torch.autograd.grad(states[-1].sum(), y0)[0], torch.tensor([math.exp(0.5)]), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize(("level", "most"), [(0.55, 8), (0.5, 8), (1 / 3, 8)])
def test_an_event_of_constant_slope_costs_few_evaluations(level, most):
    found = odeint_solution(
        lambda t, y: torch.ones_like(y), torch.zeros(1), [0.0, 1.0], method="euler", options={"step_size": 0.4}, event_fn=lambda t, y: y - level
    )
    assert found.event.item() == pytest.approx(level, abs=1e-15)
    assert found.nfe <= 32 + most


SHAPES = {
    "a line": lambda t: 0.3 - t,
    "a parabola": lambda t: 0.09 - t * t,
    "a cubic": lambda t: (0.3 - t) ** 3,
    "a step": lambda t: 0.5 - (t > 0.3),
    "a cliff": lambda t: 1.0 if t < 0.3 else -1e9,
    "a cliff after a line": lambda t: 1e-9 * (1 - t) if t < 0.3 else -1.0,
    "zero after it": lambda t: max(0.3 - t, 0.0),
    "steep": lambda t: math.exp(-40 * t) - math.exp(-12.0),
    "rounded": lambda t: round((0.3 - t) * 1e7) / 1e7,
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_crossing_is_found_with_few_evaluations(shape):
    seen = []
    before, after = crossing(lambda t: seen.append(t) or shape(t), 0.0, 1.0, shape(0.0), shape(1.0))
    assert before < after <= before + 1e-15
    assert shape(before) > 0 >= shape(after)
    assert len(seen) <= 110
    assert before == pytest.approx(0.3, abs=1e-5)
