"""Forecasts without a network, `(samples, horizons)` in ppm, each from the samples up to its origin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from pararnn.errors import InputError
from pararnn_cfc.demo.series import Series
from pararnn_cfc.demo.task import harmonics

YEAR = 52
SEASON_HARMONICS = 3


def persistence(series: Series, horizons: Tensor) -> Tensor:
    """The last value, for every horizon."""
    return series.ppm.unsqueeze(-1).expand(-1, len(horizons))


def seasonal_persistence(series: Series, horizons: Tensor) -> Tensor:
    """The value 52 weeks before the week to be forecast, or the last one before that; NaN in the first year. Horizons up to 52."""
    return series.latest(series.weeks.unsqueeze(-1) + horizons - YEAR)


def seasonal_growth(series: Series, horizons: Tensor) -> Tensor:
    """Seasonal persistence, raised by the growth over the last 52 weeks; NaN in the first year."""
    growth = series.ppm - series.latest(series.weeks - YEAR)
    return seasonal_persistence(series, horizons) + growth.unsqueeze(-1)


@dataclass(frozen=True, kw_only=True)
class LinearModel:
    """Ridge regression of the change from the last value, for each horizon, on recent samples and the time of year.

    Regressors are, for each of the last `lags` samples, its value relative to the last one and its age in years, then harmonics of the time of year
    and a constant.

    Attributes:
        lags: samples that are seen, the last one included.
        weights: `(regressors, horizons)`.
    """

    lags: int
    weights: Tensor

    @classmethod
    def fit(cls, examples: Sequence[tuple[Series, Tensor]], *, lags: int, ridge: float) -> Self:
        """The model that fits pairs of a series and its targets `(samples, horizons)`, NaN where there is none, best.

        Args:
            lags: samples that are seen.
            ridge: weight of the squared size of the weights against the sum of squared errors in ppm.

        Raises:
            InputError: a horizon has no target.
        """
        regressors = torch.cat([_regressors(series, lags) for series, _ in examples])
        changes = torch.cat([(targets - series.ppm.unsqueeze(-1))[lags - 1 :] for series, targets in examples])
        penalty = ridge * torch.eye(regressors.shape[-1], dtype=regressors.dtype)
        columns = []
        for horizon, change in enumerate(changes.unbind(-1)):
            known = ~change.isnan()
            if not bool(known.any()):
                raise InputError(f"no target is known for horizon number {horizon + 1}; fit on a longer series")
            seen = regressors[known]
            columns.append(torch.linalg.solve(seen.mT @ seen + penalty, seen.mT @ change[known]))
        return cls(lags=lags, weights=torch.stack(columns, dim=-1))

    def forecast(self, series: Series) -> Tensor:
        """Forecasts `(samples, horizons)`, NaN for the first `lags - 1` origins."""
        changes = _regressors(series, self.lags) @ self.weights
        unknown = changes.new_full((min(self.lags - 1, len(series)), changes.shape[-1]), torch.nan)
        return series.ppm.unsqueeze(-1) + torch.cat((unknown, changes))


def _regressors(series: Series, lags: int) -> Tensor:
    """`(samples - lags + 1, regressors)`."""
    if lags < 2 or lags > len(series):
        raise InputError(f"lags must lie between 2 and the {len(series)} samples of the series, got {lags}")
    values = series.ppm.unfold(0, lags, 1)
    years = series.years(series.weeks)
    ages = years[lags - 1 :].unsqueeze(-1) - years.unfold(0, lags, 1)
    season = harmonics(years[lags - 1 :], SEASON_HARMONICS)
    return torch.cat((values[:, :-1] - values[:, -1:], ages[:, :-1], season, torch.ones_like(season[:, :1])), dim=-1)
