"""Which configurations are best, and whether one rule beats another over the same seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pararnn_cola.study.results import Record

HIGHER_IS_BETTER = ("accuracy", "valid_steps")
QUANTILES = dict(
    enumerate(
        (
            *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
            *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
            *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
        ),
        start=1,
    )
)
"""Student's t at 97.5 %, by degrees of freedom; beyond them that of the most, which is a little too large."""
TRAIN = "train"
ROUNDING = 1e-6
"""Differences below this share of the values are rounding: kernels sum in another order where another number of networks is trained at once."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """The configuration of a group with the lowest loss of training."""

    record: Record
    tried: int
    """configurations that it is the best of"""
    edges: tuple[str, ...]
    """what lies at the end of the range that was tried, so that the true optimum may lie beyond"""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A metric of one configuration minus that of another, seed by seed; `mean` below 0 is better where less is better."""

    metric: str
    seeds: int
    mean: float
    """NaN where the two have no seed in common"""
    error: float
    """the standard error of the mean; NaN with one seed"""
    wins: int
    """seeds in which the first is better"""
    verdict: str
    """"better", "worse" or "no difference", by a t interval of 95 %; "equal" up to rounding; with one seed "unknown" """


def group(records: Iterable[Record], by: Callable[[Record], tuple[str, ...]]) -> dict[tuple[str, ...], list[Record]]:
    """The records by what `by` gives, in the order in which these first come."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(by(record), []).append(record)
    return groups


def condition(record: Record) -> tuple[str, ...]:
    """Task and algorithm: what is equal for rules that are compared."""
    return record.entry.task_label, record.configuration.algorithm


def contender(record: Record) -> tuple[str, ...]:
    """Condition and rule."""
    return (*condition(record), record.entry.rule_label)


def variant(record: Record) -> tuple[str, ...]:
    """Condition, rule, and the values of its options that were varied."""
    return (*contender(record), ", ".join(f"{name} {value:g}" for name, value in record.configuration.values.items()))


def best_of(records: Sequence[Record]) -> Best | None:
    """The best of `records` by their mean loss of training; None where all diverged, or there are none."""
    finite = [record for record in records if math.isfinite(record.mean_train)]
    if not finite:
        return None
    best = min(finite, key=lambda record: record.mean_train)
    chosen = best.configuration
    edges = []
    rates = sorted({record.configuration.lr for record in records})
    if len(rates) == 1 or chosen.lr in (rates[0], rates[-1]):
        edges.append(f"lr {chosen.lr:g}")
    for name, value in chosen.values.items():
        tried = sorted({record.configuration.values[name] for record in records if name in record.configuration.values})
        if len(tried) > 1 and value in (tried[0], tried[-1]):
            edges.append(f"{name} {value:g}")
    return Best(record=best, tried=len(records), edges=tuple(edges))


def values_of(record: Record, metric: str) -> tuple[float, ...]:
    """The metric, NaN where it was not measured, or the loss of training where it is "train", one number a seed."""
    return record.train if metric == TRAIN else record.metrics.get(metric, (math.nan,) * len(record.train))


def metrics_of(record: Record) -> list[str]:
    """Loss of training first, then what the task measures."""
    return [TRAIN, *record.metrics]


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """The mean and the standard deviation, NaN for one value, which has none."""
    if not values or not all(map(math.isfinite, values)):
        return (math.inf if math.inf in values else math.nan), math.nan
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else math.nan


def difference(metric: str, first: Sequence[float], second: Sequence[float]) -> Difference:
    """`first` minus `second`, which are numbers for the same seeds in the same order."""
    each = [one - two for one, two in zip(first, second, strict=True)]
    sign = 1 if metric in HIGHER_IS_BETTER else -1
    wins = sum(sign * value > 0 for value in each)
    mean, deviation = mean_and_deviation(each)
    error = deviation / math.sqrt(max(1, len(each)))
    sizes = [abs(one) + abs(two) for one, two in zip(first, second, strict=True)]
    same = math.isfinite(mean) and all(abs(value) <= ROUNDING * size for value, size in zip(each, sizes, strict=True))
    verdict = "equal" if same else _verdict(sign * mean, error, len(each))
    return Difference(metric=metric, seeds=len(each), mean=mean, error=error, wins=wins, verdict=verdict)


def paired(metric: str, first: Record, second: Record) -> Difference:
    """The difference of two configurations on the seeds that both have."""
    common = [seed for seed in first.entry.seeds if seed in second.entry.seeds]
    one, two = ([values_of(record, metric)[record.entry.seeds.index(seed)] for seed in common] for record in (first, second))
    return difference(metric, one, two)


def left_out(metric: str, first: Sequence[Record], second: Sequence[Record]) -> Difference | None:
    """The difference of two rules where each seed's configurations are chosen by the other seeds.

    A rule with more options to choose from has more luck to pick up in its best configuration; here that luck does not count. None with one seed,
    or where no configuration of a rule learned on all of the seeds that choose.
    """
    seeds = [seed for seed in first[0].entry.seeds if all(seed in record.entry.seeds for record in (*first, *second))]
    if len(seeds) < 2:
        return None
    chosen: list[list[float]] = []
    for records in (first, second):
        values = []
        for seed in seeds:
            others = [other for other in seeds if other != seed]
            mean, best = min(((_mean_over(record, others), record) for record in records), key=lambda pair: pair[0])
            if not math.isfinite(mean):
                return None
            values.append(values_of(best, metric)[best.entry.seeds.index(seed)])
        chosen.append(values)
    return difference(metric, *chosen)


def _mean_over(record: Record, seeds: Sequence[int]) -> float:
    """The loss of training, its mean over some of the seeds."""
    return statistics.fmean(record.train[record.entry.seeds.index(seed)] for seed in seeds)


def _verdict(gain: float, error: float, seeds: int) -> str:
    if seeds < 2 or not math.isfinite(gain):
        return "unknown"
    freedom = max(known for known in QUANTILES if known <= seeds - 1)
    if abs(gain) <= QUANTILES[freedom] * error:
        return "no difference"
    return "better" if gain > 0 else "worse" if gain < 0 else "no difference"
