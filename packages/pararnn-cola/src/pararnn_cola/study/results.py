"""What came out, one JSON line a configuration, appended entry by entry, so that a study that was stopped goes on where it was."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pararnn.errors import ConfigError
from pararnn_cola.study.settings import Configuration, Entry, entry_of


@dataclass(frozen=True, kw_only=True)
class Record:
    """One configuration of an entry, with a number a seed for everything measured."""

    entry: Entry
    configuration: Configuration
    train: tuple[float, ...]
    """loss of training, its mean over the last sequences; infinite in runs that diverged"""
    metrics: Mapping[str, tuple[float, ...]]
    """what the task's `evaluate` gave; NaN where it was not finite"""
    curve: tuple[tuple[int, float], ...]
    """sequences seen and the loss there, its mean over seeds, thinned"""
    diagnostics: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """coefficients of the rule at the end, their median over units"""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """seconds, device, versions, whether a CUDA graph was used"""

    @property
    def mean_train(self) -> float:
        """The loss of training, its mean over seeds: what configurations are chosen by."""
        return sum(self.train) / len(self.train)

    def to_json(self) -> str:
        """The record as one line."""
        configuration = self.configuration
        plain = {
            "key": self.entry.key,
            "of": len(self.entry.configurations()),
            "entry": self.entry.to_dict(),
            "configuration": {
                "algorithm": configuration.algorithm,
                "lr": configuration.lr,
                "clip": configuration.clip,
                "values": configuration.values,
            },
            "train": _plain(self.train),
            "metrics": {name: _plain(values) for name, values in self.metrics.items()},
            "curve": [[iteration, _rounded(loss)] for iteration, loss in self.curve],
            "diagnostics": {name: _plain(values) for name, values in self.diagnostics.items()},
            "facts": self.facts,
        }
        return json.dumps(plain, allow_nan=False)


def record_of(plain: Mapping[str, Any]) -> Record:
    """The record whose `to_json` was parsed to `plain`.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: `plain` is something else.
        ConfigError: its entry cannot be trained.
    """
    entry = entry_of(plain["entry"])
    train = _numbers(plain["train"], math.inf)
    metrics = {name: _numbers(values, math.nan) for name, values in plain["metrics"].items()}
    if any(len(values) != len(entry.seeds) for values in (train, *metrics.values())):
        raise ValueError(f"a record of {len(entry.seeds)} seeds has {len(train)} losses, or another number of some metric")
    return Record(
        entry=entry,
        configuration=Configuration(**plain["configuration"]),
        train=train,
        metrics=metrics,
        curve=tuple((iteration, math.inf if loss is None else loss) for iteration, loss in plain["curve"]),
        diagnostics={name: _numbers(values, math.nan) for name, values in plain["diagnostics"].items()},
        facts=plain["facts"],
    )


def append(path: Path, records: Sequence[Record]) -> None:
    """Write the records of one entry behind what is in `path`, in one go.

    Raises:
        ConfigError: the file cannot be written.
    """
    text = "".join(f"{record.to_json()}\n" for record in records)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        broken = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        with path.open("a") as file:
            # A line that a kill cut short must not swallow the first of the new ones.
            file.write("\n" + text if broken else text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error}); choose another folder") from error


def load(path: Path) -> list[Record]:
    """The records in `path` whose entry is complete; lines that are no records, such as one cut short, are passed over."""
    if not path.exists():
        return []
    latest = {}
    for line in path.read_text(encoding="utf-8-sig", errors="replace").splitlines():
        try:
            record = record_of(json.loads(line))
            # An entry that was cut short and done again has lines twice: the later one of a configuration holds.
            latest[record.entry.key, _identity(record.configuration)] = record
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError):
            continue
    counts = Counter(key for key, _ in latest)
    return [record for (key, _), record in latest.items() if counts[key] == len(record.entry.configurations())]


def _identity(configuration: Configuration) -> str:
    return f"{configuration.algorithm} {configuration.lr!r} {configuration.clip!r} {sorted(configuration.values.items())!r}"


def _plain(values: Sequence[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def _rounded(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _numbers(values: Sequence[float | None], missing: float) -> tuple[float, ...]:
    return tuple(missing if value is None else float(value) for value in values)
