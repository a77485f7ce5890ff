"""Weekly CO2 at Mauna Loa, as the weeks that were measured and the gaps between them.

Weekly means of continuous air samples, March 1958 to December 2001. They come with statsmodels, so nothing is downloaded.

Source: Keeling and Whorf (2004), in Trends: A Compendium of Data on Global Change, Carbon Dioxide Information Analysis Center; public domain.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Self

import torch
from torch import Tensor

from pararnn.errors import InputError
from pararnn_cfc.demo.extras import extra

WEEKS_PER_YEAR = 365.2425 / 7


@dataclass(frozen=True, kw_only=True)
class Series:
    """Samples of a quantity in weeks that need not follow each other.

    Attributes:
        start: the day that week 0 is named after.
        weeks: `(samples,)` whole weeks since `start`, increasing.
        ppm: `(samples,)` parts per million, float64.

    Raises:
        InputError: no sample, weeks that do not increase, or a value that is not finite.
    """

    start: date
    weeks: Tensor
    ppm: Tensor

    def __post_init__(self) -> None:
        if self.weeks.shape != self.ppm.shape or not len(self):
            raise InputError(f"a series needs as many weeks as values and at least one, got {len(self.weeks)} and {len(self.ppm)}")
        if not bool((self.weeks.diff() > 0).all()):
            raise InputError("weeks of a series must increase; sort them and drop repeated ones")
        if not bool(self.ppm.isfinite().all()):
            raise InputError(f"{int((~self.ppm.isfinite()).sum())} values of a series are not finite; leave those weeks out")

    def __len__(self) -> int:
        return len(self.weeks)

    @property
    def gaps(self) -> Tensor:
        """Weeks since the previous sample, `(samples,)`; 1 for the first."""
        return self.weeks.diff(prepend=self.weeks[:1] - 1)

    @property
    def missing(self) -> int:
        """Weeks between the first and the last sample that have none."""
        return int(self.weeks[-1] - self.weeks[0]) + 1 - len(self)

    def day(self, week: int) -> date:
        """The day that `week` is named after."""
        return self.start + timedelta(weeks=int(week))

    def week(self, day: date) -> int:
        """The first week that does not begin before `day`."""
        return -((self.start - day).days // 7)

    def before(self, week: int) -> Self:
        """The samples of earlier weeks."""
        return self.take(self.weeks < week)

    def thinned(self, share: float, generator: torch.Generator) -> Self:
        """The first sample and a random `share` of all, in order."""
        others = torch.randperm(len(self) - 1, generator=generator)[: max(0, round(share * len(self)) - 1)] + 1
        return self.take(torch.cat((others.new_zeros(1), others.sort().values)))

    def take(self, where: Tensor) -> Self:
        """The samples at a mask or increasing positions."""
        return type(self)(start=self.start, weeks=self.weeks[where], ppm=self.ppm[where])

    def latest(self, weeks: Tensor) -> Tensor:
        """Values known in `weeks` (any shape): of the last sample not after each week; before the first sample NaN."""
        places = torch.searchsorted(self.weeks, weeks.contiguous(), right=True) - 1
        return torch.where(places >= 0, self.ppm[places.clamp(min=0)], torch.nan)

    def at(self, weeks: Tensor) -> Tensor:
        """Values measured in `weeks` (any shape), NaN where there was no measurement."""
        places = torch.searchsorted(self.weeks, weeks.contiguous()).clamp(max=len(self) - 1)
        return torch.where(self.weeks[places] == weeks, self.ppm[places], torch.nan)

    def years(self, weeks: Tensor) -> Tensor:
        """`weeks` as calendar years with their fraction, such as 1975.4."""
        new_year = date(self.start.year, 1, 1)
        return self.start.year + ((self.start - new_year).days / 7 + weeks.to(torch.float64)) / WEEKS_PER_YEAR


def load_mauna_loa() -> Series:
    """The whole series, without the weeks that have no measurement.

    Raises:
        MissingExtraError: statsmodels is not installed.
    """
    weekly = extra("statsmodels.datasets.co2").load_pandas().data["co2"].dropna()
    days = [stamp.date() for stamp in weekly.index]
    weeks = torch.tensor([(day - days[0]).days // 7 for day in days])
    return Series(start=days[0], weeks=weeks, ppm=torch.tensor(weekly.tolist(), dtype=torch.float64))
