"""What is compared: an entry is one task and one rule, with every configuration of it that is tried, on every seed."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pararnn.errors import ConfigError
from pararnn_cola.study.optimizers import Algorithm

Weights = Literal["gauss", "orthogonal", "identity"]
Initialisation = Literal["two", "unit", "secant", "bisect", "none"] | float
LARGEST_SEED = 2**63 - 2**16
"""What is added to a seed, for weights and for data, has to fit as well."""
Value = float | int | str | None


@dataclass(frozen=True)
class Configuration:
    """One way to train: an algorithm and its rate, a bound of the gradient's norm, and values for the options that the entry varies."""

    algorithm: Algorithm
    lr: float
    clip: float | None
    values: Mapping[str, float]

    def label(self) -> str:
        """The configuration without its algorithm, for a table."""
        parts = [f"lr {self.lr:g}", *(f"{name} {value:g}" for name, value in self.values.items())]
        return ", ".join([*parts, "no clip" if self.clip is None else f"clip {self.clip:g}"])


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is trained as one ensemble: `seeds` times `configurations()` networks.

    Data and first weights depend on the seed alone, so every rule and configuration meets the same ones.
    """

    task: str
    task_options: Mapping[str, Any] = field(default_factory=dict)
    rule: str
    rule_options: Mapping[str, Any] = field(default_factory=dict)
    """options that all configurations share"""
    varied: tuple[Mapping[str, float], ...] = ({},)
    """values of options that the rule takes as one number a run; `rho` stands for `rho_alpha` and `rho_mu`"""
    optimizers: tuple[tuple[Algorithm, float], ...]
    """each algorithm with a rate"""
    clips: tuple[float | None, ...] = (1.0,)
    """bounds of the gradient's norm; None: no bound"""
    init: Initialisation = "two"
    """a mode of `near_critical`, "none" to leave the weights, or a number to make it the largest singular value of the recurrent weights"""
    weights: Weights = "gauss"
    update: Literal["sequence", "step"] = "sequence"
    """when weights move; with "step" every step that has a loss counts fully"""
    iterations: int = 700
    """sequences that each network sees, `batch` at a time"""
    batch: int = 16
    state_size: int = 64
    seeds: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self) -> None:
        for name in ("iterations", "batch", "state_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}; it is at least 1", **{name: getattr(self, name)})
        for name in ("varied", "optimizers", "clips", "seeds"):
            if not getattr(self, name):
                raise ConfigError(f"{name} is empty; an entry with nothing to train compares nothing", name=name)
        for name, known in (("weights", get_args(Weights)), ("update", ("sequence", "step"))):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name}={getattr(self, name)!r} is none of {', '.join(known)}", **{name: getattr(self, name)})
        for algorithm, lr in self.optimizers:
            if algorithm not in get_args(Algorithm) or not isinstance(lr, int | float) or not 0 <= lr < math.inf:
                raise ConfigError(f"optimizers has {(algorithm, lr)!r}; each is an algorithm, sgd or adam, with a finite rate", lr=lr)
        if any(clip is not None and not (isinstance(clip, int | float) and clip > 0) for clip in self.clips):
            raise ConfigError(f"clips={self.clips}; bounds are above zero (None: no bound)", clips=self.clips)
        if any(isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < LARGEST_SEED for seed in self.seeds):
            raise ConfigError(f"seeds={self.seeds}; a seed is a whole number from 0 to {LARGEST_SEED - 1}", seeds=self.seeds)
        if len({*self.seeds}) != len(self.seeds):
            raise ConfigError(f"seeds={self.seeds}; a seed that comes twice counts twice", seeds=self.seeds)
        if any({*values} != {*self.varied[0]} for values in self.varied):
            raise ConfigError("varied has other names from configuration to configuration; give each the same", varied=list(map(dict, self.varied)))

    def configurations(self) -> list[Configuration]:
        """Every configuration, in the order of the runs."""
        combined = itertools.product(self.varied, self.clips, self.optimizers)
        return [Configuration(algorithm, lr, clip, dict(values)) for values, clip, (algorithm, lr) in combined]

    def to_dict(self) -> dict[str, Any]:
        """The entry as JSON takes it."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain

    @property
    def key(self) -> str:
        """The same for equal entries, in every process."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def task_label(self) -> str:
        """What is learned, on which seeds and under which conditions, equal for the rules that may be compared."""
        options = {name: value for name, value in self.task_options.items() if name != "placement"}
        notes = [f"loss {_placed(self.task_options.get('placement', 'every'))}", *(f"{name} {value}" for name, value in options.items())]
        if self.weights != "gauss":
            notes.append(f"{self.weights} weights")
        if self.init != "two":
            notes.append(f"init {self.init}")
        if self.update == "step":
            notes.append("update every step")
        return f"{self.task} ({', '.join(notes)}; {self.state_size} units, {self.iterations} x {self.batch} sequences, {_counted(self.seeds)})"

    @property
    def rule_label(self) -> str:
        """The rule with the options that all its configurations share."""
        options = ", ".join(f"{name}={value}" for name, value in self.rule_options.items())
        return f"{self.rule}({options})" if options else self.rule

    def describe(self) -> str:
        """The entry in a line."""
        count = len(self.seeds) * len(self.configurations())
        clips = " or ".join("no clip" if clip is None else f"clip {clip:g}" for clip in self.clips)
        return f"{self.key}  {self.task_label}: {self.rule_label}, {clips}, {count} networks"


def entry_of(plain: Mapping[str, Any]) -> Entry:
    """The entry that `to_dict` gave."""
    tuples = {name: tuple(plain[name]) for name in ("varied", "clips", "seeds")}
    return Entry(**{**plain, **tuples, "optimizers": tuple((algorithm, lr) for algorithm, lr in plain["optimizers"])})


def _counted(seeds: tuple[int, ...]) -> str:
    """The seeds in words, those in a row by their ends."""
    if len(seeds) > 2 and seeds == tuple(range(seeds[0], seeds[0] + len(seeds))):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _placed(placement: Value) -> str:
    if isinstance(placement, float):
        return f"in the last {placement:.0%}"
    return "at the last step" if placement == "last" else f"at {placement} step"
