"""Pictures of a study: rules at their best, their losses while they learn, and how much the rate matters.

Colours are those of Okabe and Ito, which colour-blind people can tell apart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pararnn.errors import ConfigError
from pararnn_cola.study.comparison import TRAIN, best_of, contender, group, mean_and_deviation, metrics_of, values_of, variant
from pararnn_cola.study.results import Record

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6E6E6E")
MARKERS = "osD^vPX"
CUT_OFF = 20
"""Losses up to so many times the lowest are shown over the rate."""
BESIDE = 1.05
"""How far, as a factor of the rate, the points of a rule are shifted from those of the one before it."""


def draw_study(records: Sequence[Record], folder: Path) -> list[Path]:
    """Draw every task of `records` into `folder`; the paths of what was drawn.

    Raises:
        ConfigError: matplotlib is not installed, or the folder cannot be written.
    """
    drawn = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for (task,), members in group(records, lambda record: (record.entry.task_label,)).items():
            for name, draw in (("rules", _draw_bars), ("curves", _draw_curves), ("rates", _draw_rates)):
                path = folder / f"{name}-{re.sub('[^a-z0-9]+', '-', task.lower()).strip('-')}.png"
                figure = draw(task, members)
                figure.savefig(path)
                drawn.append(path)
    except OSError as error:
        raise ConfigError(f"plots cannot be written to {folder} ({error}); choose another folder") from error
    return drawn


def _draw_bars(task: str, records: Sequence[Record]) -> Any:
    """Loss of training and what the task measures, each rule at its best."""
    metrics, algorithms = metrics_of(records[0]), _algorithms(records)
    figure = _figure(3.2 * len(metrics), 2.6 * len(algorithms))
    panels = figure.subplots(len(algorithms), len(metrics), squeeze=False)
    for row, algorithm in zip(panels, algorithms, strict=True):
        found = {key[2]: best for key, best in _best(records, contender).items() if key[1] == algorithm}
        for axes, metric in zip(row, metrics, strict=True):
            for place, (rule, record) in enumerate(found.items()):
                mean, deviation = mean_and_deviation(values_of(record, metric))
                if math.isfinite(mean):
                    axes.bar(place, mean, yerr=deviation, capsize=3, color=_colour(records, rule))
            axes.set_xticks(range(len(found)), [rule.replace("(", "\n(") for rule in found], rotation=30, horizontalalignment="right", fontsize=8)
            if axes.get_ylim()[0] < 0:
                # A bar of the deviation may reach below zero, which no loss does.
                axes.set_ylim(bottom=0)
            axes.set_title(f"{_metric(metric)}, {algorithm}", fontsize=9)
    figure.suptitle(f"{task}: each rule at its best, mean and deviation over seeds", fontsize=10)
    return figure


def _draw_curves(task: str, records: Sequence[Record]) -> Any:
    """Loss of training by the number of batches seen, each rule at its best."""
    algorithms = _algorithms(records)
    figure = _figure(5 * len(algorithms), 5)
    for axes, algorithm in zip(figure.subplots(1, len(algorithms), squeeze=False)[0], algorithms, strict=True):
        for key, record in _best(records, contender).items():
            if key[1] == algorithm:
                seen, losses = zip(*record.curve, strict=True)
                label = f"{key[2]}, {record.configuration.label()}"
                axes.plot(seen, losses, marker=_marker(records, key[2]), markersize=3, color=_colour(records, key[2]), label=label)
        axes.set(xlabel="batches of sequences seen", ylabel="training loss, mean over seeds", yscale="log", title=algorithm)
        _legend_below(axes, columns=1)
    figure.suptitle(task, fontsize=10)
    return figure


def _draw_rates(task: str, records: Sequence[Record]) -> Any:
    """Loss of training by the rate: each rule with its best options at that rate, and faintly with each value of them."""
    algorithms = _algorithms(records)
    figure = _figure(5.5 * len(algorithms), 5)
    for axes, algorithm in zip(figure.subplots(1, len(algorithms), squeeze=False)[0], algorithms, strict=True):
        here = [record for record in records if record.configuration.algorithm == algorithm]
        for (*_, rule, _), members in group(here, variant).items():
            if points := _by_rate(members):
                axes.plot(*[*zip(*points, strict=True)][:2], color=_colour(records, rule), linewidth=0.6, alpha=0.3)
        lowest, highest = math.inf, 0.0
        for (*_, rule), members in group(here, contender).items():
            if points := _by_rate(members):
                lr, means, deviations = zip(*points, strict=True)
                lowest, highest = min(lowest, *means), max(highest, *means)
                # Beside one another, so that bars at the same rate can be told apart.
                beside = [rate * BESIDE ** _place(records, rule) for rate in lr]
                style = {"color": _colour(records, rule), "marker": _marker(records, rule), "markersize": 4, "capsize": 2}
                axes.errorbar(beside, means, yerr=deviations, label=rule, linewidth=1.4, **style)
        axes.set(xlabel="rate", ylabel="training loss, mean and deviation over seeds", xscale="log", yscale="log", title=algorithm)
        if highest > 0:
            # A rate that nearly diverged would leave no room for the others, nor would a bar that reaches zero, which has no logarithm.
            axes.set_ylim(max(lowest, highest * 1e-12) / 1.6, min(highest, CUT_OFF * max(lowest, highest * 1e-12)) * 1.4)
        _legend_below(axes, columns=3)
    figure.suptitle(
        f"{task}\nbold: best options at that rate, faint: each value of them; what diverged or is {CUT_OFF} times the lowest is left out",
        fontsize=9,
    )
    return figure


def _by_rate(records: Sequence[Record]) -> list[tuple[float, float, float]]:
    """Rates in their order, with mean and deviation of the loss of training, each at its best."""
    rates = group(records, lambda record: (str(record.configuration.lr),))
    best = [one.record for one in map(best_of, rates.values()) if one is not None]
    return sorted((record.configuration.lr, *mean_and_deviation(record.train)) for record in best)


def _legend_below(axes: Any, *, columns: int) -> None:
    """A legend under the axes, where it hides no line."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, ncols=columns, loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False)


def _best(records: Sequence[Record], by: Callable[[Record], tuple[str, ...]]) -> dict[tuple[str, ...], Record]:
    found = {key: best_of(members) for key, members in group(records, by).items()}
    return {key: best.record for key, best in found.items() if best is not None}


def _algorithms(records: Sequence[Record]) -> list[str]:
    return sorted({record.configuration.algorithm for record in records})


def _place(records: Sequence[Record], rule: str) -> int:
    return list(dict.fromkeys(record.entry.rule_label for record in records)).index(rule)


def _colour(records: Sequence[Record], rule: str) -> str:
    return COLOURS[_place(records, rule) % len(COLOURS)]


def _marker(records: Sequence[Record], rule: str) -> str:
    return MARKERS[_place(records, rule) % len(MARKERS)]


def _metric(name: str) -> str:
    return "training loss" if name == TRAIN else name


def _figure(width: float, height: float) -> Any:
    """An empty figure, sizes in inches. Made without pyplot, which would choose a backend for the whole process."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"--plots needs matplotlib, which cannot be imported ({error}); pip install 'pararnn-cola[plot]'") from error
    return Figure(figsize=(max(width, 5), max(height, 3)), dpi=130, layout="constrained")
