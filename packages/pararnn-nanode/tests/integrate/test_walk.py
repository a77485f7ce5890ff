"""What a walk reports, accepts and refuses."""

import math
import pickle

import pytest
import torch

from pararnn.errors import ConfigError, DTypeError, InputError, ShapeError
from pararnn_nanode.block import NANODE
from pararnn_nanode.errors import NonFiniteStateError
from pararnn_nanode.fields.callable import CallableField
from pararnn_nanode.integrate.catalogue import METHODS, find, register
from pararnn_nanode.integrate.fixed import integrate
from pararnn_nanode.integrate.runge_kutta import RungeKutta
from pararnn_nanode.integrate.schedule import schedule

UNIT = (0.0, 1.0)
EVALUATIONS = {"euler": 10, "midpoint": 20, "heun": 20, "rk4": 40, "rk4_38": 40, "reversible_heun": 11, "alf": 11}


@pytest.mark.parametrize("gradient", ["backprop", "checkpoint"])
@pytest.mark.parametrize("method", EVALUATIONS)
def test_evaluations_are_counted_for_each_call(method, gradient, batch):
    calls = []
    field = CallableField(lambda t, x: calls.append(None) or -x)
    for _ in range(2):
        calls.clear()
        solution = integrate(field, batch, schedule(steps=10, span=UNIT), method=method, gradient=gradient)
        assert solution.nfe == EVALUATIONS[method] == len(calls)
        assert (solution.steps, solution.method, solution.gradient) == (10, method, gradient)


def test_states_at_asked_times_are_those_of_walks_that_end_there(network, batch):
    field, times = network(4), [0.0, 0.3, 0.3, 1.0, 0.6]
    found = integrate(field, batch, schedule(times, steps=50, span=UNIT), method="rk4").x
    torch.testing.assert_close(found[0], batch, rtol=0, atol=0)
    torch.testing.assert_close(found[1], found[2], rtol=0, atol=0)
    torch.testing.assert_close(found[3], integrate(field, batch, schedule(steps=50, span=UNIT), method="rk4").last, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[4], integrate(field, batch, schedule(0.6, steps=100, span=UNIT), method="rk4").last, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_samples_with_their_own_times_are_walked_as_if_alone(method, network, batch):
    field, times = network(4), torch.tensor([[0.5, 1.0], [0.1, 0.2], [1.0, 0.0]], dtype=torch.float64)
    together = integrate(field, batch, schedule(times, steps=8, span=UNIT), method=method).x
    counts = schedule(times, steps=8, span=UNIT).counts
    for k, row in enumerate(times):
        pieces = zip((0.0, *row), row, counts, strict=False)
        grid = [torch.linspace(float(start), float(end), count + 1, dtype=torch.float64)[1:] for start, end, count in pieces]
        alone = integrate(field, batch[k : k + 1], schedule(torch.cat(grid), steps=1, span=UNIT), method=method).x
        torch.testing.assert_close(together[:, k], alone[[counts[0] - 1, sum(counts) - 1], 0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("gradient", ["backprop", "checkpoint"])
def test_progress_counts_every_step_once(gradient, network, batch):
    seen = []
    solution = integrate(network(4), batch, schedule(steps=7, span=UNIT), gradient=gradient, progress=lambda step, steps: seen.append((step, steps)))
    solution.last.sum().backward()
    assert seen == [(step, 7) for step in range(1, 8)]


def test_a_state_that_explodes_raises_with_its_step_and_time(batch):
    field = CallableField(lambda t, x: torch.where(t > 0.45, x / 0, -x))
    with pytest.raises(NonFiniteStateError, match="step 6 of 10") as caught:
        integrate(field, batch, schedule(steps=10, span=UNIT))
    assert caught.value.data == {"time": pytest.approx(0.6), "step": 6}


def test_an_initial_state_that_is_not_finite_is_named_as_the_cause(batch):
    with pytest.raises(NonFiniteStateError, match="x itself"):
        integrate(CallableField(lambda t, x: -x), batch * math.nan, schedule(steps=3, span=UNIT))


@pytest.mark.parametrize("method", ["euler", "reversible_heun"])
def test_a_field_that_changes_the_shape_or_dtype_is_refused(method, batch):
    with pytest.raises(ShapeError, match="shape of x"):
        integrate(CallableField(lambda t, x: torch.stack((x, x))), batch, schedule(steps=1, span=UNIT), method=method)
    with pytest.raises(DTypeError, match="float32"):
        integrate(CallableField(lambda t, x: x.double()), batch.float(), schedule(steps=2, span=UNIT), method=method)


def test_states_of_whole_numbers_are_refused(network):
    with pytest.raises(DTypeError, match="int64"):
        integrate(network(4), torch.ones(2, 4, dtype=torch.long), schedule(steps=1, span=UNIT))


def test_times_and_inputs_that_do_not_fit_the_state_are_refused(network, batch):
    with pytest.raises(ShapeError, match="2 samples"):
        integrate(network(4), batch, schedule(torch.ones(2, 1), steps=3, span=UNIT))
    with pytest.raises(ShapeError, match="one a step"):
        integrate(network(4, inputs=2), batch, schedule(steps=3, span=UNIT), u=torch.ones(4, 3, 2).double())


def test_vmap_over_times_is_refused_with_advice(network, batch):
    field = network(4)
    with pytest.raises(InputError, match="shape \\(samples, times\\)"):
        torch.func.vmap(lambda t: integrate(field, batch, schedule(t, steps=3, span=UNIT)).last)(torch.ones(2))


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4, 5)], ids=str)
def test_states_may_have_any_shape(shape):
    x = torch.ones(shape, dtype=torch.float64)
    found = integrate(CallableField(lambda t, x: x), x, schedule(steps=20, span=UNIT), method="rk4").last
    torch.testing.assert_close(found, math.e * x, rtol=1e-6, atol=0)


def test_inputs_may_be_a_function_of_time(network, batch):
    field = network(4, inputs=2)
    found = integrate(field, batch, schedule(steps=6, span=UNIT), method="rk4", u=lambda times: torch.ones(*times.shape, 3, 2, dtype=torch.float64))
    held = integrate(field, batch, schedule(steps=6, span=UNIT), method="rk4", u=torch.ones(3, 2, dtype=torch.float64))
    torch.testing.assert_close(found.x, held.x, rtol=0, atol=0)


def test_half_precision_states_keep_their_dtype(network, batch):
    field = network(4).to(torch.bfloat16)
    found = integrate(field, batch.to(torch.bfloat16), schedule(torch.tensor([[0.5], [1.0], [0.2]]), steps=10, span=UNIT), method="rk4").last
    assert found.dtype == torch.bfloat16


def test_a_method_of_ones_own_can_be_registered(network, batch):
    ralston = RungeKutta(name="ralston", order=2, nodes=(0.0, 2 / 3), stages=((2 / 3,),), combination=(1 / 4, 3 / 4), reads=(0, 1))
    register(ralston)
    try:
        assert find("ralston") is ralston
        assert integrate(network(4), batch, schedule(steps=5, span=UNIT), method="ralston").nfe == 10
        with pytest.raises(ConfigError, match="ralston"):
            register(RungeKutta(name="ralston", order=1, nodes=(0.0,), stages=(), combination=(1.0,), reads=(0,)))
    finally:
        del METHODS["ralston"]


def test_solutions_can_be_pickled(network, batch):
    solution = integrate(network(4), batch, schedule(steps=2, span=UNIT), gradient="checkpoint")
    with torch.no_grad():
        again = pickle.loads(pickle.dumps(integrate(network(4), batch, schedule(steps=2, span=UNIT))))
    torch.testing.assert_close(again.x, solution.x.detach(), rtol=0, atol=0)


@pytest.mark.parametrize("method", ["euler", "midpoint", "heun", "rk4", "reversible_heun", "alf"])
def test_inputs_that_jump_between_steps_are_those_of_each_step(method):
    u = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    found = NANODE(lambda t, x, u: u, steps=2, method=method)(torch.zeros(1, dtype=torch.float64), u=u)
    torch.testing.assert_close(found, torch.tensor([0.5], dtype=torch.float64))


@pytest.mark.parametrize(("method", "gradient"), [("rk4", "backprop"), ("rk4", "checkpoint"), ("rk4", "adjoint"), ("alf", "reversible")])
@pytest.mark.parametrize("t", [0.0, [0.0]], ids=["end", "times"])
def test_an_answer_at_the_start_may_be_edited_without_editing_the_state(t, method, gradient):
    x = torch.ones(2)
    NANODE(lambda t, x: -x, method=method, gradient=gradient)(x, t=t).add_(1)
    assert torch.equal(x, torch.ones(2))


@pytest.mark.parametrize(
    "function",
    [lambda t, x: x.sum(), lambda t, x: 1.0, lambda t, x: x.expand(3, 2), lambda t, x: x[:1]],
    ids=["scalar", "number", "larger", "smaller"],
)
@pytest.mark.parametrize(("method", "gradient"), [("euler", "backprop"), ("rk4", "checkpoint"), ("rk4", "adjoint"), ("alf", "reversible")])
def test_a_function_that_returns_another_shape_is_refused(method, gradient, function):
    with pytest.raises(ShapeError, match=r"shape of x, \(2,\)"):
        NANODE(function, method=method, gradient=gradient)(torch.ones(2, requires_grad=True))
