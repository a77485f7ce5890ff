import pytest

from pararnn_cola import TrainingReport
from pararnn_cola.streaming.report import POINTS, LossLog


@pytest.mark.parametrize("count", [1, 511, 512, 513, 5000, 40_000])
def test_the_curve_stays_short_and_its_points_are_means_of_equally_many_steps(count):
    log = LossLog()
    for step in range(1, count + 1):
        log.add(step, float(step))
    assert len(log.points) < POINTS
    assert log.mean == (count + 1) / 2
    for number, (step, loss) in enumerate(log.points, 1):
        assert step == number * log.stride
        assert loss == step - (log.stride - 1) / 2
    assert count < POINTS or len(log.points) >= POINTS // 2


def test_a_log_goes_on_from_its_state():
    one = LossLog()
    for step in range(1, 1500):
        one.add(step, step**0.5)
    two = LossLog.of(one.state_dict())
    for log in (one, two):
        for step in range(1500, 4000):
            log.add(step, step**0.5)
    assert vars(one) == vars(two)


@pytest.mark.parametrize(
    "change",
    [{"total": "1"}, {"points": [1.0]}, {"points": [("a", 1.0)]}, {"stride": 0}, {"count": -1}, {"count": True}, {"more": 1}],
    ids=repr,
)
def test_a_state_that_is_none_of_a_log_is_refused(change):
    with pytest.raises((TypeError, ValueError)):
        LossLog.of(LossLog().state_dict() | change)


def test_a_report_shows_itself_in_one_short_line():
    curve = tuple((step, 0.5) for step in range(500))
    told = {"steps": 500, "sequences": 1, "mean_loss": 0.5, "loss_curve": curve, "seconds": 0.1, "steps_per_second": 4000.0, "resumed_at": 100}
    report = TrainingReport(**told)
    assert str(report) == repr(report) == "TrainingReport(500 steps in 1 sequence, resumed after 100, mean loss 0.5, 4,000 steps/s)"
    assert report.to_dict()["loss_curve"][3] == [3, 0.5]
    assert "no loss" in str(TrainingReport(**told | {"mean_loss": None}))
