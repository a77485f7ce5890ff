"""Solutions that are known, and what they cost."""

import math

import pytest
import torch

from pararnn_nanode import BucketPath, CallableField, DenseField, NonFiniteStateError, StepUnderflowError, TrigPath, odeint, odeint_solution
from pararnn_nanode.integrate.adaptive import integrate
from pararnn_nanode.integrate.dopri5 import PAIRS


def decay(t, y):
    return -y


@pytest.mark.parametrize("name", PAIRS)
def test_each_pair_has_the_order_that_it_says(name):
    pair = PAIRS[name]
    nodes = (0.0, *pair.nodes)
    weights = (*pair.rows[-1], 0.0)
    for power in range(min(pair.order, 5)):
        assert sum(b * c**power for b, c in zip(weights, nodes, strict=False)) == pytest.approx(1 / (power + 1), abs=1e-14)
    for node, row in zip(pair.nodes, pair.rows, strict=True):
        assert sum(row) == pytest.approx(node, abs=1e-14)
    assert sum(pair.error) == pytest.approx(0.0, abs=1e-15)


def test_repeated_and_decreasing_times_are_fine():
    found = odeint(decay, torch.ones(1), [1.0, 1.0, 0.5, 0.5, 0.0, 0.0])
    torch.testing.assert_close(found[:, 0], torch.tensor([1.0, 1.0, math.e**0.5, math.e**0.5, math.e, math.e]), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_times_that_are_all_the_same_give_the_first_state(method):
    assert torch.equal(odeint(decay, torch.ones(2), [3.0, 3.0, 3.0], method=method), torch.ones(3, 2))


@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_every_sample_may_have_times_of_its_own(method):
    times = torch.tensor([[0.0, 1.0, 1.5], [0.5, 0.5, 3.0], [1.0, 0.5, 0.0]])
    found = odeint(lambda t, y: y * torch.cos(t), torch.ones(3, 2), times, method=method, options={"step_size": 0.02} if method == "rk4" else {})
    expected = torch.exp(torch.sin(times) - torch.sin(times[:, :1])).T.unsqueeze(-1).expand(3, 3, 2)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_a_jump_that_is_named_costs_few_evaluations_and_is_exact():
    def func(t, y):
        return torch.where(t < 0.5, 1.0, 10.0) * torch.ones_like(y)

    for t in ([0.0, 1.0], [1.0, 0.0]):
        solution = odeint_solution(func, torch.zeros(1), t, method="dopri5", options={"jump_t": torch.tensor([0.5])})
        assert solution.x[-1].item() == pytest.approx(5.5 * (t[1] - t[0]), abs=1e-12)
        assert solution.nfe < 60


@pytest.mark.parametrize("span", [(0.0, 1.0), (1.0, 0.0)], ids=["forward", "backward"])
def test_steps_end_where_the_weights_of_a_field_jump(span):
    field = DenseField(3, BucketPath((3, 3), 4), activation=None)
    x = torch.randn(5, 3)
    exact = x
    pieces = [field.path.at((k + 0.5) / 4) for k in range(4)]
    for weight in pieces if span[1] > span[0] else reversed(pieces):
        exact = exact @ torch.linalg.matrix_exp(weight * (span[1] - span[0]) / 4).T
    solution = integrate(field, x, span)
    torch.testing.assert_close(solution.last, exact, rtol=1e-6, atol=1e-6)
    assert solution.rejected < 5
    both = integrate(field, x, torch.tensor([span] * 5))
    torch.testing.assert_close(both.last, exact, rtol=1e-6, atol=1e-6)


def test_samples_with_their_own_times_meet_the_jumps_each_on_their_own():
    field = DenseField(3, BucketPath((3, 3), 4))
    x = torch.randn(3, 3)
    times = torch.tensor([[0.0, 1.0], [0.3, 0.6], [0.9, 0.1]])
    alone = torch.stack([integrate(field, x[k], times[k]).last for k in range(3)])
    torch.testing.assert_close(integrate(field, x, times).last, alone, rtol=1e-6, atol=1e-6)


def test_the_field_is_never_asked_outside_the_times():
    seen = []

    def func(t, y):
        seen.append(float(t))
        return y / (1 + torch.log(t + 1))

    odeint(func, torch.ones(1), [0.79, 0.3, 0.0])
    assert min(seen) >= 0.0
    assert max(seen) <= 0.79


def test_evaluations_are_counted_for_each_call():
    calls = []

    def func(t, y):
        calls.append(t)
        return -y

    counts = [odeint_solution(func, torch.ones(1), [0.0, 1.0]).nfe for _ in range(3)]
    assert counts[0] == counts[1] == counts[2] == len(calls) / 3
    assert [odeint_solution(func, torch.ones(1), torch.linspace(0, 1, 11), method="rk4").nfe for _ in range(3)] == [40, 40, 40]


def test_a_fixed_grid_ends_at_the_last_time():
    assert odeint_solution(decay, torch.ones(1), [0.0, 0.59], method="euler", options={"step_size": 0.01}).steps == 59
    found = odeint(lambda t, y: torch.ones_like(y), torch.zeros(1), [0.0, 5.9], method="euler", options={"step_size": 1e-3})
    assert found[-1].item() == pytest.approx(5.9, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_integrated_in_float32(dtype):
    found = odeint(decay, torch.ones(4, dtype=dtype), [0.0, 1.0])
    assert found.dtype == dtype
    torch.testing.assert_close(found[-1].double(), torch.full((4,), math.exp(-1.0)), rtol=torch.finfo(dtype).eps, atol=0.0)


def test_a_module_in_half_precision_is_integrated_in_float32_too():
    class Linear(torch.nn.Linear):
        def forward(self, t, y):
            return super().forward(y)

    module = Linear(2, 2, dtype=torch.bfloat16)
    y0 = torch.ones(2, dtype=torch.bfloat16)
    found = odeint(module, y0, [0.0, 1.0])
    found[-1].sum().backward()
    assert module.weight.grad.dtype == torch.bfloat16
    torch.testing.assert_close(found, odeint(module.float(), y0.float(), [0.0, 1.0]).bfloat16(), rtol=0.0, atol=0.0)


def test_progress_is_told_with_an_estimate_of_the_total():
    seen = []
    integrate(CallableField(decay), torch.ones(1), [0.0, 5.0], progress=lambda step, steps: seen.append((step, steps)))
    assert [step for step, _ in seen] == list(range(1, len(seen) + 1))
    assert seen[-1] == (len(seen), len(seen))


def test_a_dense_field_and_the_same_function_have_one_solution():
    field = DenseField(4, TrigPath((4, 4), 2), bias=TrigPath(4, 1))
    x = torch.randn(3, 4)
    torch.testing.assert_close(integrate(field, x, [0.0, 1.0]).x, odeint(field, x, [0.0, 1.0]), rtol=1e-6, atol=1e-6)


def test_a_solution_that_runs_to_infinity_is_an_error_with_its_time():
    with pytest.raises(StepUnderflowError, match="singularity") as caught:
        odeint(lambda t, y: y * y, torch.ones(1), [0.0, 2.0])
    assert caught.value.data["time"] == pytest.approx(1.0, abs=1e-6)


def test_too_many_steps_are_an_error_with_what_was_reached():
    with pytest.raises(StepUnderflowError, match="max_steps = 100 attempts brought t only to"):
        odeint(lambda t, y: -1e6 * (y - torch.cos(t)), torch.zeros(1), [0.0, 2.0], method="dopri5", options={"max_num_steps": 100})


@pytest.mark.parametrize("when", [0.0, 0.5])
def test_a_field_that_is_not_finite_is_an_error_with_its_time(when):
    with pytest.raises(NonFiniteStateError) as caught:
        odeint(lambda t, y: torch.where(t >= when, math.nan, -y), torch.ones(1), [0.0, 1.0])
    assert caught.value.data["time"] == pytest.approx(when, abs=1e-6)
