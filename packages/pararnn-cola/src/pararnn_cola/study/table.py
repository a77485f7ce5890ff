"""The results as tables: each rule at its best, each value of its options at its best, and COLA against TBPTT-1 with a gain."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pararnn_cola.study.comparison import (
    Best,
    Difference,
    best_of,
    condition,
    contender,
    group,
    left_out,
    mean_and_deviation,
    metrics_of,
    paired,
    values_of,
    variant,
)
from pararnn_cola.study.results import Record

FIRST, SECOND = "COLA", "TBPTT1"
BEST = "best COLA, best gain"
OTHERS = "chosen by the other seeds"
DEFAULTS = {"rho": 0.99, "margin": 0.1, "hidden_gain": 1.0}


@dataclass(frozen=True, kw_only=True)
class Duel:
    """COLA against TBPTT-1 under one condition."""

    condition: tuple[str, ...]
    choice: str
    """how the configurations were chosen"""
    first: str
    second: str
    differences: tuple[Difference, ...]


def best_by(records: Sequence[Record], by: Callable[[Record], tuple[str, ...]]) -> dict[tuple[str, ...], Best]:
    """The best of each group, those that diverged throughout left out."""
    found = {key: best_of(members) for key, members in group(records, by).items()}
    return {key: best for key, best in found.items() if best is not None}


def lost(records: Sequence[Record]) -> dict[tuple[str, ...], int]:
    """The contenders that diverged in every configuration, which no table can show, with the number of these."""
    return {key: len(members) for key, members in group(records, contender).items() if best_of(members) is None}


def duels(records: Sequence[Record]) -> list[Duel]:
    """COLA against TBPTT-1 wherever both were trained: each at its defaults or at its best, chosen on all seeds or on the others.

    Where gradients were trained with several bounds of their norm, both are also compared at each: under some algorithms a gain acts through the
    bound alone.
    """
    found = []
    for where, members in group(records, condition).items():
        ours, theirs = ([record for record in members if record.entry.rule == rule and not record.entry.rule_options] for rule in (FIRST, SECOND))
        if not ours or not theirs:
            continue
        plain, published = _at_defaults(theirs), _at_defaults(ours)
        found += [*_at_best(where, "published COLA, gain 1", published, plain), *_at_best(where, "best COLA, gain 1", ours, plain)]
        found += [*_at_best(where, BEST, ours, theirs), *_held_out(where, BEST, ours, theirs)]
        clips = [clip for clip in dict.fromkeys(map(_clip, ours)) if clip in {*map(_clip, theirs)}]
        for clip in clips if len(clips) > 1 else ():
            choice = f"{BEST}, {'no clip' if clip is None else f'clip {clip:g}'}"
            one, two = ([record for record in rule if _clip(record) == clip] for rule in (ours, theirs))
            found += [*_at_best(where, choice, one, two), *_held_out(where, choice, one, two)]
    return found


def _at_best(where: tuple[str, ...], choice: str, ours: Sequence[Record], theirs: Sequence[Record]) -> list[Duel]:
    """The duel of the best of either side, none where one diverged throughout."""
    best, rival = best_of(ours), best_of(theirs)
    if best is None or rival is None:
        return []
    compared = tuple(paired(metric, best.record, rival.record) for metric in metrics_of(best.record))
    labels = best.record.configuration.label(), rival.record.configuration.label()
    return [Duel(condition=where, choice=choice, first=labels[0], second=labels[1], differences=compared)]


def _held_out(where: tuple[str, ...], choice: str, ours: Sequence[Record], theirs: Sequence[Record]) -> list[Duel]:
    """The duel in which each seed's configurations are chosen by the other seeds, none where there is no choice."""
    compared = [left_out(metric, ours, theirs) for metric in metrics_of(ours[0])]
    known = tuple(one for one in compared if one is not None)
    label = "differs by seed"
    return [Duel(condition=where, choice=f"{choice}, {OTHERS}", first=label, second=label, differences=known)] if known else []


def _clip(record: Record) -> float | None:
    return record.configuration.clip


def markdown(records: Sequence[Record]) -> str:
    """All tables, for people."""
    if not records:
        return "Nothing has been trained yet.\n"
    best, variants = best_by(records, contender), best_by(records, variant)
    parts = [
        "## Each rule at its best\n",
        "The configuration with the lowest mean loss of training over the seeds; mean ± standard deviation over seeds.\n",
        *(f"{note}\n" for note in notes(records)),
        _best_tables(best, with_values=False),
        *(f"Diverged with all of its configurations: {key[2]} ({key[1]}) on {key[0]}, {tried} tried.\n" for key, tried in lost(records).items()),
        "## Each value of the options at its best rate\n",
        _best_tables(variants, with_values=True),
        "## COLA against TBPTT-1 with a gain on its hidden gradients\n",
        "Differences COLA minus TBPTT-1 over the same seeds: mean ± standard error (seeds in which COLA is better), and what a t interval of 95 % "
        'says of COLA, "equal" up to rounding. These intervals are not corrected for their number.\n',
        _duel_tables(duels(records)),
        f"{_provenance(records)}\n",
    ]
    return "\n".join(parts)


def to_dict(records: Sequence[Record]) -> dict[str, Any]:
    """All tables, for programs; what is not finite is None."""
    best, variants = best_by(records, contender), best_by(records, variant)
    return {
        "best": [_best_row(key, one) for key, one in best.items()],
        "variants": [_best_row(key, one) for key, one in variants.items()],
        "notes": notes(records),
        "diverged": [{"task": key[0], "algorithm": key[1], "rule": key[2], "tried": tried} for key, tried in lost(records).items()],
        "duels": [_without_infinities(dataclasses.asdict(duel)) for duel in duels(records)],
    }


def notes(records: Sequence[Record]) -> list[str]:
    """What has to be known to read the tables of `records`, a sentence each."""
    found = [
        '"tried" counts the configurations that a row is the best of; rules were tuned over unequal numbers of them, so that the ones with more had '
        f'more luck to pick up, for which the rows "{OTHERS}" below correct.'
    ]
    if any(record.entry.task_options.get("placement") == "last" and record.entry.rule == FIRST for record in records):
        found.append("Where only the last step has a loss, COLA is TBPTT-1 with gain 1, whatever its options, so one setting of it was trained.")
    if any(record.entry.update == "step" for record in records):
        found.append(
            'With "update every step" the training loss is the sum over the steps, each with weight 1; elsewhere it is their mean, weighted as the '
            "task says."
        )
    return found


def _at_defaults(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if all(DEFAULTS.get(name, value) == value for name, value in record.configuration.values.items())]


def _best_tables(best: dict[tuple[str, ...], Best], *, with_values: bool) -> str:
    tables = []
    for task in dict.fromkeys(key[0] for key in best):
        rows = {key: one for key, one in best.items() if key[0] == task and (not with_values or key[3])}
        if not rows:
            continue
        metrics = metrics_of(next(iter(rows.values())).record)
        header = ["rule", "algorithm", *metrics, "configuration", "at an edge", "seeds", "tried"]
        lines = [_line(header), _line(["---"] * len(header))]
        for key, one in rows.items():
            cells = [_plus_minus(values_of(one.record, metric)) for metric in metrics]
            edge = ", ".join(one.edges) or "-"
            seeds = str(len(one.record.entry.seeds))
            lines.append(_line([key[2], key[1], *cells, one.record.configuration.label(), edge, seeds, str(one.tried)]))
        tables.append("\n".join([f"### {task}\n", *lines, ""]))
    return "\n".join(tables)


def _duel_tables(found: Sequence[Duel]) -> str:
    tables = []
    for task in dict.fromkeys(duel.condition[0] for duel in found):
        rows = [duel for duel in found if duel.condition[0] == task]
        header = ["algorithm", "compared", *(one.metric for one in rows[0].differences), "COLA", "TBPTT-1"]
        lines = [_line(header), _line(["---"] * len(header))]
        for duel in rows:
            cells = [f"{one.mean:+.3g}{_spread(one.error)} ({one.wins} of {one.seeds}): {one.verdict}" for one in duel.differences]
            lines.append(_line([duel.condition[1], duel.choice, *cells, duel.first, duel.second]))
        tables.append("\n".join([f"### {task}\n", *lines, ""]))
    return "\n".join(tables)


def _best_row(key: tuple[str, ...], best: Best) -> dict[str, Any]:
    record = best.record
    values = {metric: list(values_of(record, metric)) for metric in metrics_of(record)}
    row = {
        "task": key[0],
        "algorithm": key[1],
        "rule": key[2],
        "configuration": dataclasses.asdict(record.configuration),
        "seeds": list(record.entry.seeds),
        "values": values,
        "mean": {metric: mean_and_deviation(each)[0] for metric, each in values.items()},
        "deviation": {metric: mean_and_deviation(each)[1] for metric, each in values.items()},
        "edges": list(best.edges),
        "tried": best.tried,
    }
    plain: dict[str, Any] = _without_infinities(row)
    return plain


def _without_infinities(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_infinities(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinities(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _provenance(records: Sequence[Record]) -> str:
    devices = sorted({f"{record.facts.get('device')}, torch {record.facts.get('torch')}" for record in records})
    entries = {record.entry.key: record for record in records}
    graphs = sum(bool(record.facts.get("cuda_graph")) for record in entries.values())
    seconds = sum(float(record.facts.get("seconds", 0)) for record in entries.values())
    networks = sum(int(record.facts.get("runs", 0)) for record in entries.values())
    return f"{networks} networks in {len(entries)} entries, {seconds:.0f} s on {'; '.join(devices)}; {graphs} entries in a CUDA graph."


def _plus_minus(values: Sequence[float]) -> str:
    mean, deviation = mean_and_deviation(values)
    if math.isinf(mean):
        return "diverged"
    return "not finite" if math.isnan(mean) else f"{mean:.4g}{_spread(deviation)}"


def _spread(deviation: float) -> str:
    """How far values lie apart; nothing for a single one, of which that is not known."""
    return "" if math.isnan(deviation) else f" ± {deviation:.2g}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
