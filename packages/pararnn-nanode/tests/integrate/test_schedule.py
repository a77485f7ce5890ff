"""Where steps end, and what is asked for."""

import math

import pytest
import torch

from pararnn.errors import ConfigError, InputError
from pararnn_nanode.integrate.schedule import schedule, through

UNIT = (0.0, 1.0)


def test_the_last_time_alone_is_asked_for_by_default():
    plan = schedule(steps=4, span=(1.0, 3.0))
    assert plan.knots.tolist() == [1.0, 1.5, 2.0, 2.5, 3.0]
    assert plan.widths == (0.5,) * 4
    assert plan.outputs == (4,)
    assert plan.times.tolist() == [3.0]


def test_a_path_asks_for_every_knot():
    plan = schedule(steps=3, span=UNIT, output="path")
    assert plan.outputs == (0, 1, 2, 3)
    torch.testing.assert_close(plan.times, plan.knots, rtol=0, atol=0)


@pytest.mark.parametrize("times", [[0.25, 1.0], (0.25, 1.0), torch.tensor([0.25, 1.0])], ids=["list", "tuple", "tensor"])
def test_asked_times_are_knots_with_steps_in_proportion(times):
    plan = schedule(times, steps=8, span=UNIT)
    assert plan.outputs == (2, 8)
    assert [plan.host()[index] for index in plan.outputs] == [0.25, 1.0]


def test_times_of_numpy_are_read():
    numpy = pytest.importorskip("numpy")
    assert schedule(numpy.array([0.5, 1.0]), steps=4, span=UNIT).outputs == (2, 4)
    assert schedule(numpy.float32(0.5), steps=4, span=UNIT).steps == 2


def test_times_may_repeat_and_decrease():
    plan = schedule([0.5, 0.5, 0.0], steps=4, span=UNIT)
    assert plan.outputs == (2, 2, 4)
    assert plan.widths == (0.25, 0.25, -0.25, -0.25)


def test_the_start_itself_may_be_asked_for():
    assert schedule([0.0, 1.0], steps=3, span=UNIT).outputs == (0, 3)


def test_an_end_beyond_the_span_gets_steps_in_proportion():
    assert schedule(2.5, steps=4, span=UNIT).steps == 10
    assert schedule(1e-9, steps=4, span=UNIT).steps == 1


def test_points_are_met_to_the_last_bit():
    points = [0.1, 0.7, math.pi, 0.3]
    plan = through(points, [7, 3, 11])
    assert [plan.knots[index].item() for index in (0, *plan.outputs)] == points
    assert plan.host() == pytest.approx(plan.knots.tolist(), abs=0)


def test_samples_may_have_their_own_times():
    plan = schedule(torch.tensor([[0.5, 1.0], [0.1, 0.2]], dtype=torch.float64), steps=10, span=UNIT)
    assert plan.outputs == (5, 10)
    assert plan.knots.shape == (11, 2)
    torch.testing.assert_close(plan.knots[[5, 10]].T, plan.times)
    assert plan.host() is None


def test_knots_and_widths_follow_the_times_differentiably():
    end = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    plan = schedule(end, steps=5, span=UNIT)
    (by_width,) = torch.autograd.grad(plan.widths.sum(), end, retain_graph=True)
    (by_knot,) = torch.autograd.grad(plan.knots[2], end)
    assert (float(by_width), float(by_knot)) == (pytest.approx(1.0), pytest.approx(0.5))


@pytest.mark.parametrize("bad", [math.nan, [0.1, math.inf], torch.tensor([math.nan])], ids=["number", "list", "tensor"])
def test_times_that_are_not_finite_are_refused(bad):
    with pytest.raises(InputError, match="finite"):
        schedule(bad, steps=3, span=UNIT)


@pytest.mark.parametrize("bad", [torch.zeros(2, 2, 2), torch.zeros(0), []], ids=["cube", "empty", "list"])
def test_times_of_another_shape_are_refused(bad):
    with pytest.raises(InputError, match="times"):
        schedule(bad, steps=3, span=UNIT)


@pytest.mark.parametrize("options", [{"steps": 0}, {"steps": 2.5}, {"steps": True}, {"steps": 1, "output": "all"}], ids=str)
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError):
        schedule(span=UNIT, **options)
