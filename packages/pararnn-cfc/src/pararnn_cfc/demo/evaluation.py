"""The network and the baselines on the test years, as measured and with half of the weeks dropped.

As measured, the test years have hardly a gap, so the second condition shows what reading the time gap is worth. The network is the same in both; the
linear model is fitted for each, on training series with the same share of weeks dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pararnn_cfc.demo.baselines import LinearModel, persistence, seasonal_growth, seasonal_persistence
from pararnn_cfc.demo.model import Forecaster
from pararnn_cfc.demo.scores import Score
from pararnn_cfc.demo.series import Series
from pararnn_cfc.demo.task import ForecastTask
from pararnn_cfc.demo.training import TrainingConfig, forecast

NETWORK = "ParaCfC"
LINEAR = "linear"
LINEAR_LAGS = (4, 13, 26, 52)
LINEAR_RIDGES = (1.0, 10.0, 100.0)
# Name and share of the weeks that is kept.
CONDITIONS = {"as measured": 1.0, "half of the weeks dropped at random": 0.5}


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What came out under one condition.

    Attributes:
        series: the samples that the forecasts were made from.
        origins: `(samples,)`, which of them are origins of the test.
        forecasts: `(samples, horizons)` in ppm, by method.
        scores: by method.
        linear_lags: samples that the linear model sees, the choice that did best on the validation years.
        linear_ridge: likewise.
    """

    series: Series
    origins: Tensor
    forecasts: Mapping[str, Tensor]
    scores: Mapping[str, Score]
    linear_lags: int
    linear_ridge: float


def evaluate(forecaster: Forecaster, task: ForecastTask, config: TrainingConfig, *, kept_share: float) -> Evaluation:
    """Forecast the test years from a random `kept_share` of all weeks; every measured week is a target all the same."""
    generator = torch.Generator().manual_seed(config.seed + 1)
    if kept_share < 1:
        series = task.series.thinned(kept_share, generator)
        training = [task.training.thinned(kept_share, generator) for _ in range(config.batch)]
    else:
        series, training = task.series, [task.training]
    linear, ridge = _best_linear(task, series, [(copy, task.targets(copy, before=task.validation_start)) for copy in training])
    forecasts = {
        "persistence": persistence(series, task.horizons),
        "seasonal persistence": seasonal_persistence(series, task.horizons),
        "seasonal + growth": seasonal_growth(series, task.horizons),
        LINEAR: linear.forecast(series),
        NETWORK: forecast(forecaster, task, series),
    }
    origins = task.test_origins(series)
    targets = task.targets(series)[origins]
    return Evaluation(
        series=series,
        origins=origins,
        forecasts=forecasts,
        scores={name: Score.of(ahead[origins], targets) for name, ahead in forecasts.items()},
        linear_lags=linear.lags,
        linear_ridge=ridge,
    )


def _best_linear(task: ForecastTask, series: Series, examples: list[tuple[Series, Tensor]]) -> tuple[LinearModel, float]:
    """The linear model, and its ridge, that does best on the validation years, as the network's weights are chosen."""
    past = series.before(task.test_start)
    origins = task.validation_origins(past)
    targets = task.targets(past, before=task.test_start)[origins]
    tried = [(LinearModel.fit(examples, lags=lags, ridge=ridge), ridge) for lags in LINEAR_LAGS for ridge in LINEAR_RIDGES]
    return min(tried, key=lambda pair: Score.of(pair[0].forecast(past)[origins], targets).rmse)
