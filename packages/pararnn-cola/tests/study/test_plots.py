from __future__ import annotations

import math
import statistics
import warnings

import pytest

from pararnn_cola.study import plots
from pararnn_cola.study.presets import grid
from pararnn_cola.study.results import Record
from pararnn_cola.study.settings import Entry

RATES = (0.001, 0.01, 0.1, 1.0)


@pytest.fixture(autouse=True)
def matplotlib():
    return pytest.importorskip("matplotlib")


@pytest.fixture
def records():
    """Two rules with many options, one of which nearly diverges at the largest rate and diverges in one seed at the next."""

    def loss(lr, gain, seed):
        return math.inf if (lr, gain, seed) == (1.0, 3.0, 1) else 1e6 if lr == 1.0 else 0.1 + 0.01 * gain + 0.3 * seed

    found = []
    for rule, options in (("COLA", {}), ("TBPTT", {"k1": 10, "k2": 10})):
        varied = tuple({"hidden_gain": float(gain)} for gain in range(1, 10))
        entry = Entry(task="adding", rule=rule, rule_options=options, varied=varied, optimizers=grid(sgd=RATES), seeds=(0, 1), iterations=2)
        for one in entry.configurations():
            train = tuple(loss(one.lr, one.values["hidden_gain"], seed) for seed in entry.seeds)
            curve = ((1, 1.0), (2, statistics.fmean(train)))
            found.append(Record(entry=entry, configuration=one, train=train, metrics={"mse_last": train}, curve=curve))
    return found


def test_rates_have_a_line_with_bars_a_rule_and_a_legend_that_hides_none(records):
    figure = plots._draw_rates("adding", records)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["COLA", "TBPTT(k1=10, k2=10)"]
    assert all(container.has_yerr for container in axes.containers)
    figure.canvas.draw()
    assert not axes.get_legend().get_window_extent().overlaps(axes.get_window_extent())


def test_losses_far_above_the_lowest_leave_room_for_the_others(records):
    (axes,) = plots._draw_rates("adding", records).axes
    low, high = axes.get_ylim()
    lowest = min(record.mean_train for record in records)
    assert 0.5 * lowest < low < lowest
    assert 2 * lowest < high < 50 * lowest


def test_curves_have_a_legend_that_hides_none(records):
    figure = plots._draw_curves("adding", records)
    (axes,) = figure.axes
    figure.canvas.draw()
    assert not axes.get_legend().get_window_extent().overlaps(axes.get_window_extent())
    assert "batches" in axes.get_xlabel()


def test_bars_begin_at_zero_and_their_labels_do_not_touch(records):
    figure = plots._draw_bars("adding", records)
    figure.canvas.draw()
    for axes in figure.axes:
        assert axes.get_ylim()[0] == 0
        assert [label.get_text() for label in axes.get_xticklabels()] == ["COLA", "TBPTT\n(k1=10, k2=10)"]


def test_a_study_that_diverged_or_has_one_seed_is_drawn_without_a_warning(records, tmp_path):
    lost = [Record(entry=one.entry, configuration=one.configuration, train=(math.inf,) * 2, metrics=one.metrics, curve=one.curve) for one in records]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(plots.draw_study(lost, tmp_path)) == 3
