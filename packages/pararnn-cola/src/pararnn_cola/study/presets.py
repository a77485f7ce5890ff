"""The comparisons that come with the package, and the choice of a part of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pararnn.errors import ConfigError
from pararnn_cola.study.optimizers import Algorithm
from pararnn_cola.study.settings import Entry

Grid = tuple[tuple[Algorithm, float], ...]
Gains = tuple[Mapping[str, float], ...]

GAINS: Gains = tuple({"hidden_gain": gain} for gain in (1.0, 3.0, 10.0, 30.0))
CLOSURES: Gains = tuple({"rho": rho, "margin": margin} for rho in (0.9, 0.99, 0.999) for margin in (0.02, 0.1, 0.3))
STRONGER: Gains = tuple({"hidden_gain": gain} for gain in (100.0, 300.0))
FURTHER: Gains = (
    *({"rho": rho, "margin": 0.005} for rho in (0.5, 0.9, 0.99, 0.999)),
    *({"rho": 0.5, "margin": margin} for margin in (0.02, 0.1, 0.3)),
)
PUBLISHED: Gains = ({"rho": 0.99, "margin": 0.1},)
TEN: Mapping[str, Any] = {"k1": 10, "k2": 10}


def grid(*, sgd: Sequence[float] = (), adam: Sequence[float] = ()) -> Grid:
    """Rates by algorithm, in the order in which an entry lists them."""
    return (*(("adam", lr) for lr in adam), *(("sgd", lr) for lr in sgd))


def smoke() -> list[Entry]:
    """Seconds on one core: shows that everything works, and nothing else."""
    rates = grid(sgd=(0.03, 0.1, 0.3), adam=(0.003, 0.01))
    small: dict[str, Any] = {"task": "adding", "optimizers": rates, "iterations": 20, "batch": 4, "state_size": 8, "seeds": (0, 1)}
    return [
        Entry(task_options={"length": 8, "placement": placement}, rule=rule, varied=varied, **small)
        for placement in ("every", 0.5)
        for rule, varied in (("COLA", CLOSURES[3:5]), ("TBPTT1", GAINS[::2]))
    ]


def prototype() -> list[Entry]:
    """64 units, 50 steps, batches of 16 and three seeds; hours on one core, all rules."""
    rates = grid(sgd=(0.01, 0.03, 0.1, 0.3, 1.0), adam=(0.003, 0.01))
    slow = grid(sgd=(0.003, 0.01, 0.03, 0.1), adam=(1e-4, 3e-4, 1e-3))
    conditions: list[tuple[str, dict[str, Any], dict[str, Any], Grid]] = [
        ("adding", {"length": 50, "placement": "every"}, {"iterations": 700}, rates),
        ("adding", {"length": 50, "placement": "last"}, {"iterations": 700}, rates),
        ("lorenz", {"length": 50, "placement": "every"}, {"iterations": 700}, rates),
        ("digits", {"placement": "every"}, {"iterations": 1500}, rates),
        ("digits", {"placement": "last"}, {"iterations": 1500}, rates),
        ("adding", {"length": 50, "placement": "every"}, {"iterations": 500, "weights": "identity"}, rates),
        ("adding", {"length": 50, "placement": "every"}, {"iterations": 200, "update": "step"}, slow),
        ("lorenz", {"length": 50, "placement": "every"}, {"iterations": 200, "update": "step"}, slow),
    ]
    entries = []
    for task, options, rest, chosen in conditions:
        common = {"task": task, "task_options": options, "optimizers": chosen, **rest}
        entries += [Entry(rule="COLA", varied=PUBLISHED, **common), Entry(rule="TBPTT1", varied=GAINS, **common)]
        if rest.get("update") != "step":
            entries += _rivals(common)
    return entries


def tuned() -> list[Entry]:
    """128 units, 200 steps and five seeds, over ranges of everything that the source leaves open; minutes on a large GPU.

    Where only the last step has a loss COLA is TBPTT-1 with gain 1, so one setting of COLA is enough to show it. Where COLA and TBPTT-1 are tried
    with and without a bound of the gradient's norm, so are all rules.
    """
    rates = grid(sgd=(3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0), adam=(1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03))
    both, one = (1.0, None), (1.0,)
    conditions: list[tuple[str, str | float, tuple[float | None, ...], dict[str, Any]]] = [
        ("adding", "every", both, {}),
        ("adding", 0.5, both, {}),
        ("adding", 0.25, both, {}),
        ("lorenz", "every", both, {}),
        ("lorenz", 0.25, both, {}),
        ("adding", "every", one, {"weights": "identity"}),
        ("adding", "every", one, {"update": "step", "iterations": 200}),
        ("lorenz", "every", one, {"update": "step", "iterations": 200}),
        ("adding", "last", one, {}),
        ("characters", "every", one, {}),
    ]
    entries, unclipped = [], []
    for task, placement, clips, rest in conditions:
        common: dict[str, Any] = {
            "task": task,
            "task_options": {"length": 200, "placement": placement},
            "optimizers": rates,
            "iterations": 600,
            "batch": 16,
            "state_size": 128,
            "seeds": (0, 1, 2, 3, 4),
            **rest,
        }
        closures = PUBLISHED if placement == "last" else CLOSURES
        # An entry for each bound, so that an interruption costs less.
        entries += [Entry(rule="TBPTT1", varied=GAINS, clips=(clip,), **common) for clip in clips]
        entries += [Entry(rule="COLA", varied=closures, clips=(clip,), **common) for clip in clips]
        if task != "characters" and placement != "last":
            # Under SGD the first ranges left the best of both rules at an edge: larger gains, smaller margins and shorter memories.
            beyond = {**common, "optimizers": tuple(rate for rate in rates if rate[0] == "sgd")}
            entries += [Entry(rule="TBPTT1", varied=STRONGER, clips=(clip,), **beyond) for clip in clips]
            entries += [Entry(rule="COLA", varied=FURTHER, clips=(clip,), **beyond) for clip in clips]
        if rest.get("update") != "step":
            entries += _rivals(common)
        if None in clips:
            # Entries of their own, behind all others: results of the bounded ones, found by the keys of theirs, still count.
            unclipped += _rivals({**common, "clips": (None,)})
    return entries + unclipped


def _rivals(common: Mapping[str, Any]) -> list[Entry]:
    """Rules that COLA and TBPTT-1 are seen beside, over rates alone."""
    return [Entry(rule="BPTT", **common), Entry(rule="TBPTT", rule_options=TEN, **common), Entry(rule="SnAp1", **common)]


PRESETS: dict[str, Callable[[], list[Entry]]] = {"smoke": smoke, "prototype": prototype, "tuned": tuned}


def chosen_entries(
    preset: str,
    *,
    rules: Sequence[str] = (),
    tasks: Sequence[str] = (),
    seeds: Sequence[int] = (),
    changes: Mapping[str, Any] | None = None,
) -> list[Entry]:
    """The entries of `preset` for `rules` and `tasks` (all where none is named), with `seeds` and other fields changed where they are given.

    A task is named as in `tasks.make`, or with its placement behind a colon: "adding:every", "adding:0.5".

    Raises:
        ConfigError: there is no such preset, it has not all of the rules and tasks, or no entry is left.
    """
    if preset not in PRESETS:
        raise ConfigError(f"preset={preset!r} is none of {', '.join(PRESETS)}", preset=preset)
    entries = PRESETS[preset]()
    known = {"rules": {entry.rule for entry in entries}, "tasks": {name for entry in entries for name in (entry.task, _placed(entry))}}
    for kind, names in (("rules", rules), ("tasks", tasks)):
        if unknown := [name for name in names if name not in known[kind]]:
            raise ConfigError(f"{preset!r} has no entry for the {kind} {', '.join(unknown)}; it has {', '.join(sorted(known[kind]))}", names=unknown)
    kept = [entry for entry in entries if (not rules or entry.rule in rules) and (not tasks or {entry.task, _placed(entry)} & {*tasks})]
    if not kept:
        raise ConfigError(f"{preset!r} has no entry of any of the rules {', '.join(rules)} on any of the tasks {', '.join(tasks)}")
    replaced: dict[str, Any] = {**({"seeds": tuple(seeds)} if seeds else {}), **(changes or {})}
    return [dataclasses.replace(entry, **replaced) for entry in kept]


def _placed(entry: Entry) -> str:
    return f"{entry.task}:{entry.task_options.get('placement', 'every')}"
