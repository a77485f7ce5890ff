from datetime import date

import pytest
import torch

from pararnn.errors import InputError
from pararnn_cfc.demo.series import Series, load_mauna_loa


def test_mauna_loa_has_the_published_weeks_and_gaps():
    pytest.importorskip("statsmodels")

    series = load_mauna_loa()

    assert (len(series), series.missing, int(series.gaps.max())) == (2225, 59, 19)
    assert series.start == date(1958, 3, 29)
    assert series.day(int(series.weeks[-1])) == date(2001, 12, 29)


def test_gaps_count_weeks_since_the_previous_sample():
    series = Series(start=date(2000, 1, 1), weeks=torch.tensor([0, 1, 4]), ppm=torch.tensor([1.0, 2.0, 3.0]))

    assert series.gaps.tolist() == [1, 1, 3]
    assert series.missing == 2


def test_a_week_without_measurement_is_nan_but_its_latest_value_is_known():
    series = Series(start=date(2000, 1, 1), weeks=torch.tensor([0, 1, 4]), ppm=torch.tensor([1.0, 2.0, 3.0]))
    weeks = torch.tensor([-1, 1, 3, 4, 9])

    torch.testing.assert_close(series.at(weeks), torch.tensor([torch.nan, 2, torch.nan, 3, torch.nan]), equal_nan=True)
    torch.testing.assert_close(series.latest(weeks), torch.tensor([torch.nan, 2, 2, 3, 3]), equal_nan=True)


def test_days_and_weeks_are_each_others_inverse(series):
    for week in (0, 1, 300):
        assert series.week(series.day(week)) == week
    assert series.week(date(1980, 1, 6)) == 1


def test_years_start_at_the_first_of_january(series):
    assert float(series.years(torch.tensor(0))) == pytest.approx(1980 + 4 / 365.2425)


def test_thinning_keeps_order_first_sample_and_share(series):
    thinned = series.thinned(0.5, torch.Generator().manual_seed(0))

    assert len(thinned) == round(0.5 * len(series))
    assert int(thinned.weeks[0]) == int(series.weeks[0])
    torch.testing.assert_close(series.at(thinned.weeks), thinned.ppm)


@pytest.mark.parametrize(
    ("weeks", "ppm", "words"),
    [([], [], "at least one"), ([0, 0], [1.0, 2.0], "increase"), ([0, 1], [1.0, float("nan")], "not finite")],
    ids=["empty", "repeated week", "NaN"],
)
def test_a_series_that_cannot_be_is_refused(weeks, ppm, words):
    with pytest.raises(InputError, match=words):
        Series(start=date(2000, 1, 1), weeks=torch.tensor(weeks, dtype=torch.int64), ppm=torch.tensor(ppm, dtype=torch.float64))
