"""Which configurations are best, and whether one rule beats another over the same seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pararnn_cola.study.results import Record

HIGHER_IS_BETTER = ("accuracy", "valid_steps")
QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 14: 2.145, 19: 2.093, 29: 2.045}
"""Student's t at 97.5 %, by degrees of freedom."""
TRAIN = "train"


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
    """the standard error of the mean"""
    wins: int
    """seeds in which the first is better"""
    verdict: str
    """"better", "worse" or "no difference", by a t interval of 95 %; with one seed "unknown" """


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
    """The metric, or the loss of training where it is "train", one number a seed."""
    return record.train if metric == TRAIN else record.metrics[metric]


def metrics_of(record: Record) -> list[str]:
    """Loss of training first, then what the task measures."""
    return [TRAIN, *record.metrics]


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """The mean and the standard deviation (0 for one value)."""
    if not values or not all(map(math.isfinite, values)):
        return (math.inf if math.inf in values else math.nan), math.nan
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def difference(metric: str, first: Sequence[float], second: Sequence[float]) -> Difference:
    """`first` minus `second`, which are numbers for the same seeds in the same order."""
    each = [one - two for one, two in zip(first, second, strict=True)]
    sign = 1 if metric in HIGHER_IS_BETTER else -1
    wins = sum(sign * value > 0 for value in each)
    mean, deviation = mean_and_deviation(each)
    error = deviation / math.sqrt(max(1, len(each)))
    return Difference(metric=metric, seeds=len(each), mean=mean, error=error, wins=wins, verdict=_verdict(sign * mean, error, len(each)))


def paired(metric: str, first: Record, second: Record) -> Difference:
    """The difference of two configurations on the seeds that both have."""
    common = [seed for seed in first.entry.seeds if seed in second.entry.seeds]
    one, two = ([values_of(record, metric)[record.entry.seeds.index(seed)] for seed in common] for record in (first, second))
    return difference(metric, one, two)


def left_out(metric: str, first: Sequence[Record], second: Sequence[Record]) -> Difference | None:
    """The difference of two rules where each seed's configurations are chosen by the other seeds.

    A rule with more options to choose from has more luck to pick up in its best configuration; here that luck does not count. None with one seed,
    or where a rule diverged throughout.
    """
    seeds = [seed for seed in first[0].entry.seeds if all(seed in record.entry.seeds for record in (*first, *second))]
    if len(seeds) < 2:
        return None
    chosen: list[list[float]] = []
    for records in (first, second):
        values = []
        for seed in seeds:
            best = min(
                records, key=lambda record: statistics.fmean(record.train[record.entry.seeds.index(other)] for other in seeds if other != seed)
            )
            values.append(values_of(best, metric)[best.entry.seeds.index(seed)])
        chosen.append(values)
    return difference(metric, *chosen)


def _verdict(gain: float, error: float, seeds: int) -> str:
    if seeds < 2 or not math.isfinite(gain):
        return "unknown"
    freedom = max(known for known in QUANTILES if known <= seeds - 1)
    if abs(gain) <= QUANTILES[freedom] * error:
        return "no difference"
    return "better" if gain > 0 else "worse" if gain < 0 else "no difference"
