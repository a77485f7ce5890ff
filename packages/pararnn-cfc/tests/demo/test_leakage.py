"""The past must not know the future: neither in inputs and forecasts, nor in what is fitted."""

from datetime import date

import pytest
import torch

from pararnn.errors import InputError
from pararnn_cfc.demo.baselines import LinearModel, seasonal_growth
from pararnn_cfc.demo.series import Series
from pararnn_cfc.demo.task import HORIZONS, ForecastTask
from pararnn_cfc.demo.training import TrainingConfig, batch_of, build, forecast, thinned_copies, train

SPLIT = {"validation_start": date(1986, 1, 1), "test_start": date(1988, 1, 1)}
CONFIG = TrainingConfig(epochs=2, batch=2, state_size=4)


def changed_after(series, week):
    ppm = torch.where(series.weeks > week, 1000 - series.ppm, series.ppm)
    return Series(start=series.start, weeks=series.weeks, ppm=ppm)


def ahead_by_all(task, series):
    forecaster = build(task, CONFIG)
    torch.nn.init.normal_(forecaster.head.weight, generator=torch.Generator().manual_seed(1))
    linear = LinearModel.fit([(task.training, task.targets(task.training, before=task.validation_start))], lags=4, ridge=1.0)
    return torch.cat(
        (task.inputs(series), forecast(forecaster, task, series), linear.forecast(series), seasonal_growth(series, task.horizons)), dim=-1
    )


def test_inputs_and_forecasts_of_the_past_do_not_depend_on_the_future(task, series):
    week = 460
    other = changed_after(series, week)
    past = series.weeks <= week

    before, after = ahead_by_all(task, series), ahead_by_all(task, other)

    torch.testing.assert_close(after[past], before[past], atol=1e-5, rtol=0, equal_nan=True)
    assert not torch.allclose(after[~past], before[~past])


def test_what_is_fitted_does_not_depend_on_years_after_training(task, series):
    other = ForecastTask.of(changed_after(series, task.validation_start - 1), **SPLIT)

    torch.testing.assert_close(other.cycle, task.cycle, atol=0, rtol=0)
    assert other.change_scale == task.change_scale
    batches = [batch_of(one, thinned_copies(one, CONFIG, torch.Generator().manual_seed(0))) for one in (task, other)]
    torch.testing.assert_close(batches[1], batches[0], atol=0, rtol=0, equal_nan=True)


def test_the_trained_network_does_not_depend_on_test_years(task, series):
    other = ForecastTask.of(changed_after(series, task.test_start - 1), **SPLIT)
    trained = []
    for one in (task, other):
        forecaster = build(one, CONFIG)
        train(forecaster, one, CONFIG)
        trained.append(forecaster.state_dict())

    torch.testing.assert_close(trained[1], trained[0], atol=0, rtol=0)


def test_no_target_lies_in_a_later_part(task, series):
    ahead = series.weeks.unsqueeze(-1) + task.horizons

    assert int(ahead[~task.targets(series, before=task.validation_start).isnan()].max()) < task.validation_start
    assert int(ahead[task.validation_origins(series)].max()) < task.test_start
    assert int(series.weeks[task.test_origins(series)].min()) >= task.test_start


def test_targets_are_what_was_measured_later(task, series):
    origin = 200
    expected = [series.ppm[series.weeks == series.weeks[origin] + ahead].tolist() for ahead in range(1, HORIZONS + 1)]

    measured = task.targets(series)[origin].tolist()

    assert [[value] if value == value else [] for value in measured] == expected


def test_a_series_that_is_too_short_is_refused(series):
    with pytest.raises(InputError, match="they need at least"):
        ForecastTask.of(series.before(450), **SPLIT)
