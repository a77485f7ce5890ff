"""What is to be forecast, from what, and which years are for what.

Every week that was measured is an origin: from the samples up to it, the values `1 .. 26` weeks later are forecast. Years are split by time, and
everything that is fitted (the seasonal cycle, scales, weights, the linear baseline) sees the training years only, as inputs and as targets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import date

import torch
from torch import Tensor

from pararnn.errors import InputError
from pararnn_cfc.demo.series import Series

HORIZONS = 26
VALIDATION_START = date(1992, 1, 1)
TEST_START = date(1996, 1, 1)
CYCLE_HARMONICS = 3
INPUT_HARMONICS = 2


def harmonics(years: Tensor, count: int) -> Tensor:
    """Sines and cosines of the time of year, `(*years, 2 * count)`."""
    phase = 2 * math.pi * years.unsqueeze(-1) * torch.arange(1, count + 1, dtype=years.dtype)
    return torch.cat((torch.sin(phase), torch.cos(phase)), dim=-1)


@dataclass(frozen=True, kw_only=True)
class ForecastTask:
    """A series, its split, and what was learnt about it from the training years.

    Attributes:
        series: all samples.
        horizons: `(horizons,)` weeks ahead.
        validation_start, test_start: first week of those parts.
        cycle: weights of the seasonal cycle's harmonics, in ppm.
        change_scale: standard deviation of the deseasonalised change from one sample to the next, in ppm.
    """

    series: Series
    horizons: Tensor = field(default_factory=lambda: torch.arange(1, HORIZONS + 1))
    validation_start: int
    test_start: int
    cycle: Tensor
    change_scale: float

    @classmethod
    def of(cls, series: Series, *, validation_start: date = VALIDATION_START, test_start: date = TEST_START) -> ForecastTask:
        """The task for `series`, with the cycle and the scale of its training years.

        Raises:
            InputError: a part would be too short.
        """
        ends = (series.week(validation_start), series.week(test_start), int(series.weeks[-1]) + 1)
        lengths = [int(((series.weeks >= first) & (series.weeks < end)).sum()) for first, end in zip((0, *ends[:-1]), ends, strict=True)]
        if lengths[0] < 156 or min(lengths) <= 2 * HORIZONS:
            raise InputError(
                f"training, validation and test have {lengths} samples; they need at least 156, {2 * HORIZONS + 1} and {2 * HORIZONS + 1}"
            )
        training = series.before(ends[0])
        cycle = _seasonal_cycle(training)
        changes = _deseasonalised(training, cycle).diff()
        return cls(series=series, validation_start=ends[0], test_start=ends[1], cycle=cycle, change_scale=round(float(changes.std()), 6))

    @property
    def training(self) -> Series:
        """The samples of the training years."""
        return self.series.before(self.validation_start)

    def inputs(self, series: Series) -> Tensor:
        """What the network reads of `series`, `(samples, 2 + 2 * INPUT_HARMONICS)` in float32.

        The deseasonalised change since the previous sample, the time of year, and last the gap in weeks. Changes instead of levels, because the level
        of the test years was never seen in training. A row depends on its own sample and the one before it, never on later ones.
        """
        values = _deseasonalised(series, self.cycle)
        change = values.diff(prepend=values[:1]) / self.change_scale
        season = harmonics(series.years(series.weeks), INPUT_HARMONICS)
        return torch.cat((change.unsqueeze(-1), season, series.gaps.unsqueeze(-1)), dim=-1).to(torch.float32)

    def reference(self, series: Series) -> Tensor:
        """What the network corrects: the last value and the seasonal cycle's change from then on, `(samples, horizons)` in ppm."""
        ahead = series.weeks.unsqueeze(-1) + self.horizons
        return _deseasonalised(series, self.cycle).unsqueeze(-1) + _cycle_at(series, ahead, self.cycle)

    def targets(self, series: Series, *, before: int | None = None) -> Tensor:
        """Measured values ahead of every sample of `series`, `(samples, horizons)` in ppm; NaN where there is none, or none `before` that week."""
        ahead = series.weeks.unsqueeze(-1) + self.horizons
        measured = self.series.at(ahead)
        return measured if before is None else torch.where(ahead < before, measured, torch.nan)

    def validation_origins(self, series: Series) -> Tensor:
        """Which samples of `series` are origins of the validation: in its years, with all targets before the test years; `(samples,)`."""
        return (series.weeks >= self.validation_start) & (series.weeks + HORIZONS < self.test_start)

    def test_origins(self, series: Series) -> Tensor:
        """Which samples of `series` are origins of the test: in its years, with all targets before the end; `(samples,)`."""
        return (series.weeks >= self.test_start) & (series.weeks + HORIZONS <= self.series.weeks[-1])


def _seasonal_cycle(series: Series) -> Tensor:
    """Least-squares weights of the harmonics beside a quadratic trend, which keeps the trend out of them."""
    years = series.years(series.weeks)
    centred = (years - years.mean()) / (years[-1] - years[0])
    trend = torch.stack((torch.ones_like(years), centred, centred.square()), dim=-1)
    weights = torch.linalg.lstsq(torch.cat((trend, harmonics(years, CYCLE_HARMONICS)), dim=-1), series.ppm.unsqueeze(-1)).solution
    # The last digits depend on where the matrix lies in memory; without them, training is the same in every run.
    cycle: Tensor = weights[trend.shape[-1] :, 0].round(decimals=6)
    return cycle


def _cycle_at(series: Series, weeks: Tensor, cycle: Tensor) -> Tensor:
    return harmonics(series.years(weeks), CYCLE_HARMONICS) @ cycle


def _deseasonalised(series: Series, cycle: Tensor) -> Tensor:
    return series.ppm - _cycle_at(series, series.weeks, cycle)
