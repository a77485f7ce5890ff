"""A synthetic series that is small, so that most tests need neither statsmodels nor time."""

import math
from datetime import date

import pytest
import torch

from pararnn_cfc.demo.series import WEEKS_PER_YEAR, Series
from pararnn_cfc.demo.task import ForecastTask


def rising_waves(weeks):
    weeks = weeks.to(torch.float64)
    return 315 + 0.03 * weeks + 3 * torch.sin(2 * math.pi * weeks / WEEKS_PER_YEAR) + 0.2 * torch.sin(1.7 * weeks)


@pytest.fixture
def series():
    """Ten years of which every seventh week and a whole season are missing."""
    weeks = torch.arange(520)
    weeks = weeks[(weeks % 7 != 3) & ((weeks < 100) | (weeks > 112))]
    return Series(start=date(1980, 1, 5), weeks=weeks, ppm=rising_waves(weeks))


@pytest.fixture
def task(series):
    return ForecastTask.of(series, validation_start=date(1986, 1, 1), test_start=date(1988, 1, 1))
