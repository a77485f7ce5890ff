from datetime import date

import pytest
import torch

from pararnn.errors import InputError
from pararnn_cfc.demo.baselines import LinearModel, persistence, seasonal_growth, seasonal_persistence
from pararnn_cfc.demo.scores import Score
from pararnn_cfc.demo.series import Series


@pytest.fixture
def by_hand():
    """Weeks 0 to 3 and 52 to 54, of which week 1 is missing."""
    return Series(start=date(2000, 1, 1), weeks=torch.tensor([0, 2, 3, 52, 53, 54]), ppm=torch.tensor([10.0, 12.0, 13.0, 20.0, 21.0, 24.0]))


def test_persistence_repeats_the_last_value(by_hand):
    assert persistence(by_hand, torch.tensor([1, 2]))[3].tolist() == [20, 20]


def test_seasonal_persistence_repeats_last_year_or_the_last_value_before(by_hand):
    ahead = seasonal_persistence(by_hand, torch.tensor([1, 2, 3]))

    # From week 52: weeks 53, 54, 55 are weeks 1 (missing, so week 0), 2 and 3 of the year before.
    assert ahead[3].tolist() == [10, 12, 13]
    assert bool(ahead[0].isnan().all())


def test_seasonal_growth_adds_what_was_gained_in_a_year(by_hand):
    # From week 54, grown from 12 to 24 in a year: week 55 is week 3 plus 12.
    assert seasonal_growth(by_hand, torch.tensor([1]))[5].tolist() == [25]


def test_the_linear_model_finds_the_slope_of_a_line():
    weeks = torch.arange(60)
    line = Series(start=date(2000, 1, 1), weeks=weeks, ppm=300 + 0.5 * weeks.to(torch.float64))
    horizons = torch.tensor([1, 4])
    targets = line.at(line.weeks.unsqueeze(-1) + horizons)

    ahead = LinearModel.fit([(line, targets)], lags=2, ridge=1e-9).forecast(line)

    torch.testing.assert_close(ahead[1:], line.ppm[1:, None] + 0.5 * horizons, atol=1e-6, rtol=0)
    assert bool(ahead[:1].isnan().all())


def test_the_linear_model_equals_ridge_regression_written_out(series):
    targets = series.at(series.weeks.unsqueeze(-1) + 1)
    model = LinearModel.fit([(series, targets)], lags=3, ridge=2.0)
    years = series.years(series.weeks)
    rows, changes = [], []
    for now in range(2, len(series)):
        waves = [function(2 * torch.pi * count * years[now]) for function in (torch.sin, torch.cos) for count in (1, 2, 3)]
        past = [
            series.ppm[now - 2] - series.ppm[now],
            series.ppm[now - 1] - series.ppm[now],
            years[now] - years[now - 2],
            years[now] - years[now - 1],
        ]
        rows.append(torch.stack([*past, *waves, torch.ones((), dtype=torch.float64)]))
        changes.append(targets[now, 0] - series.ppm[now])
    known = [number for number, change in enumerate(changes) if not change.isnan()]
    design, response = torch.stack([rows[number] for number in known]), torch.stack([changes[number] for number in known])
    # A ridge is least squares with one more row a weight, which pulls it to zero.
    weights = torch.linalg.lstsq(
        torch.cat((design, 2.0**0.5 * torch.eye(design.shape[1], dtype=torch.float64))),
        torch.cat((response, response.new_zeros(design.shape[1])))[:, None],
    ).solution

    torch.testing.assert_close(model.weights, weights, atol=1e-8, rtol=1e-6)


def test_lags_beyond_the_series_are_refused(by_hand):
    with pytest.raises(InputError, match="between 2 and the 6 samples"):
        LinearModel.fit([(by_hand, by_hand.ppm[:, None])], lags=7, ridge=1.0)


def test_a_score_counts_known_targets_only():
    score = Score.of(torch.tensor([[1.0, 2.0], [5.0, 9.0]]), torch.tensor([[4.0, 2.0], [1.0, torch.nan]]))

    assert score.forecasts == 3
    assert score.mae_by_horizon == [3.5, 0]
    assert score.rmse == pytest.approx((25 / 3) ** 0.5)
