import pytest

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
    one, two = LossLog(), LossLog()
    for step in range(1, 1500):
        one.add(step, step**0.5)
    two.load_state_dict(one.state_dict())
    for log in (one, two):
        for step in range(1500, 4000):
            log.add(step, step**0.5)
    assert vars(one) == vars(two)
