"""Pictures of the data, the forecasts, the training and the time that it took.

Colours are those of Okabe and Ito, which colour-blind people can tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pararnn_cfc.demo.comparison import Comparison
from pararnn_cfc.demo.evaluation import LINEAR, NETWORK, Evaluation
from pararnn_cfc.demo.extras import extra
from pararnn_cfc.demo.task import ForecastTask
from pararnn_cfc.demo.training import TrainingRecord

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#6E6E6E"
# Colour, line and marker, so that methods can be told apart without colours too.
STYLES = {
    "persistence": (GREY, ":", "s"),
    "seasonal persistence": (GREEN, "-.", "^"),
    "seasonal + growth": (PURPLE, "--", "v"),
    LINEAR: (ORANGE, "-", "D"),
    NETWORK: (BLUE, "-", "o"),
}
ERROR_HORIZON = 13


def draw_data(task: ForecastTask, path: Path) -> None:
    """The series with its parts, and below it the gaps that are longer than a week."""
    series = task.series
    years = series.years(series.weeks)
    figure = _figure(9, 5)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    bounds = series.years(series.weeks.new_tensor([0, task.validation_start, task.test_start, int(series.weeks[-1])])).tolist()
    for name, shade, first, end in zip(("training", "validation", "test"), ("white", "#E8E8E8", "#CFE3F0"), bounds, bounds[1:], strict=False):
        for axes in (above, below):
            axes.axvspan(first, end, color=shade, linewidth=0, zorder=0)
        above.text((first + end) / 2, 0.03, name, transform=above.get_xaxis_transform(), horizontalalignment="center")
    above.plot(years, series.ppm, ".", markersize=2, color=BLUE)
    above.set(ylabel="CO₂ (ppm)", title=f"CO₂ at Mauna Loa: {len(series)} weeks measured, {series.missing} weeks missing between them")
    longer = series.gaps > 1
    below.vlines(years[longer], 0, series.gaps[longer], color=ORANGE, linewidth=2)
    below.set(ylabel="gap (weeks)", xlabel="year", ylim=(0, 1.1 * float(series.gaps.max())), xlim=(bounds[0], bounds[-1]))
    figure.savefig(path)


def draw_forecast(task: ForecastTask, evaluation: Evaluation, path: Path) -> None:
    """Forecasts from some origins of the test, errors by horizon, and errors over the test years."""
    figure = _figure(10, 8)
    grid = figure.add_gridspec(2, 2)
    _draw_paths(figure.add_subplot(grid[0, :]), task, evaluation)
    horizons = figure.add_subplot(grid[1, 0])
    for name, score in evaluation.scores.items():
        colour, line, marker = STYLES[name]
        horizons.plot(task.horizons, score.rmse_by_horizon, line, color=colour, marker=marker, markersize=4, markevery=5, label=name)
    horizons.set(xlabel="weeks ahead", ylabel="RMSE (ppm), log scale", title="Error by horizon, test years", yscale="log")
    _label_ticks(horizons, [0.25, 0.5, 1, 2, 4])
    # Room for the legend above the highest line.
    horizons.set_ylim(top=2.6 * max(max(score.rmse_by_horizon) for score in evaluation.scores.values()))
    horizons.legend(fontsize=8, ncols=2, loc="upper left")
    errors = figure.add_subplot(grid[1, 1])
    place = ERROR_HORIZON - 1
    target = task.series.years(evaluation.series.weeks + ERROR_HORIZON)[evaluation.origins]
    truth = task.targets(evaluation.series)[evaluation.origins, place]
    for name in (LINEAR, NETWORK):
        colour, line, _ = STYLES[name]
        errors.plot(target, evaluation.forecasts[name][evaluation.origins, place] - truth, line, color=colour, linewidth=1, label=name)
    errors.axhline(0, color="black", linewidth=0.6)
    errors.set(xlabel="year", ylabel="forecast - measured (ppm)", title=f"Error {ERROR_HORIZON} weeks ahead")
    errors.set_xticks(range(math.ceil(float(target[0])), int(target[-1]) + 1))
    errors.set_ylim(top=1.3 * errors.get_ylim()[1])
    errors.legend(fontsize=8, ncols=2, loc="upper left")
    figure.savefig(path)


def draw_training(record: TrainingRecord, path: Path) -> None:
    """Error on the training and on the validation years, by training step."""
    figure = _figure(7, 4)
    axes = figure.subplots()
    axes.plot(
        range(1, len(record.losses) + 1), [loss**0.5 for loss in record.losses], color=GREY, linewidth=1, label="training years, thinned copies"
    )
    axes.plot(list(record.validation), list(record.validation.values()), color=BLUE, marker="o", markersize=4, label="validation years, as measured")
    best = (record.best_epoch, record.validation[record.best_epoch])
    axes.plot(*best, "*", color=ORANGE, markersize=14, linestyle="none", label=f"kept: step {best[0]}, {best[1]:.3f} ppm")
    axes.set(xlabel="training step", ylabel="RMSE over 1 to 26 weeks (ppm)", title="Training, parallel over time")
    axes.legend()
    figure.savefig(path)


def draw_speed(comparison: Comparison, path: Path) -> None:
    """Seconds of forward and backward by the length of the sequence, in parallel and by the loop."""
    figure = _figure(7, 4)
    axes = figure.subplots()
    for name, seconds, colour, marker in (
        ("loop", comparison.loop_by_length, ORANGE, "D"),
        ("parallel over time", comparison.parallel_by_length, BLUE, "o"),
    ):
        axes.plot(comparison.lengths, [1000 * one for one in seconds], color=colour, marker=marker, label=name)
    for length, parallel, loop in zip(comparison.lengths, comparison.parallel_by_length, comparison.loop_by_length, strict=True):
        text = f"{loop / parallel:.1f}x"
        axes.annotate(text, (length, 1000 * loop), xytext=(0, 8), textcoords="offset points", horizontalalignment="center", fontsize=9)
    axes.set(xscale="log", yscale="log", xlabel="steps of time", ylabel="forward and backward (ms)")
    axes.set_title(f"{comparison.shape[0]} sequences side by side, and how many times as long the loop takes")
    axes.set_ylim(top=1.5 * axes.get_ylim()[1])
    _label_ticks(axes, [number * scale for scale in (1, 10, 100, 1000, 10000) for number in (1, 2, 5)])
    axes.set_xticks(comparison.lengths, [str(length) for length in comparison.lengths])
    axes.legend(loc="upper left")
    figure.savefig(path)


def _draw_paths(axes: Any, task: ForecastTask, evaluation: Evaluation) -> None:
    series = task.series
    first = int(evaluation.origins.nonzero()[0])
    shown = series.weeks >= task.test_start
    axes.plot(series.years(series.weeks[shown]), series.ppm[shown], ".", color="black", markersize=2, label="measured")
    origins = evaluation.origins.nonzero()[:: len(task.horizons), 0]
    for name in (LINEAR, NETWORK):
        colour, line, _ = STYLES[name]
        for number, origin in enumerate(origins):
            years = series.years(evaluation.series.weeks[origin] + task.horizons)
            label = f"{name}, 1 to {len(task.horizons)} weeks ahead" if number == 0 else None
            axes.plot(years, evaluation.forecasts[name][origin], line, color=colour, linewidth=1.3, alpha=0.9, label=label)
    starts = evaluation.series.take(origins)
    axes.plot(
        starts.years(starts.weeks), starts.ppm, "o", markerfacecolor="none", markeredgecolor="black", markersize=6, label="origin: last value seen"
    )
    axes.set(xlabel="year", ylabel="CO₂ (ppm)", title=f"Forecasts of test years, first origin {series.day(int(evaluation.series.weeks[first]))}")
    axes.legend(fontsize=8)


def _label_ticks(axes: Any, ticks: Sequence[float]) -> None:
    """Plain numbers at those of `ticks` that the data reach, instead of powers of ten."""
    low, high = axes.get_ylim()
    axes.minorticks_off()
    shown = [tick for tick in ticks if low <= tick <= high]
    axes.set_yticks(shown, [f"{tick:g}" for tick in shown])


def _figure(width: float, height: float) -> Any:
    """An empty figure, sizes in inches. Made without pyplot, which would choose a backend for the whole process."""
    return extra("matplotlib.figure").Figure(figsize=(width, height), dpi=130, layout="constrained")
