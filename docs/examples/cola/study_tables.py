"""The tables and the figure of the documentation, from the tables that the study writes.

    pararnn cola-study tuned --out cola-study
    python docs/examples/cola/study_tables.py cola-study/table.json --figure differences.png

Three tables: the loss of training and one test metric of each rule at its best, TBPTT-1 with gain 1 and with its best gain apart, and COLA minus the
best gain over the same seeds, with half the width of the t interval of 95 %.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from matplotlib.figure import Figure
from rich.console import Console

from pararnn_cola.study.comparison import QUANTILES

RULES = {"COLA": "COLA", "TBPTT-1": None, "TBPTT-1 x gain": "TBPTT1", "BPTT": "BPTT", "TBPTT-10": "TBPTT(k1=10, k2=10)", "SnAp-1": "SnAp1"}
"""Columns, and the rules of the study; that without one is TBPTT1 with gain 1."""
CHOICES = {"best": "best COLA, best gain", "left out": "best COLA, best gain, chosen by the other seeds"}
TESTS = ("valid_steps", "accuracy", "bits_per_character", "mse_all", "mse_last")


def condition(task: str) -> str:
    """The task's label without what is the same for all of a preset."""
    return re.sub(r"[,;] *(length \d+|\d+ units, \d+ x \d+ sequences|seeds? \d+( to \d+|(, \d+)*))", "", task)


def test_of(task: str, metrics: Iterable[str]) -> str:
    """The metric to show: of what was trained."""
    held = [name for name in TESTS if name in metrics]
    return "mse_last" if "mse_all" in held and "at every step" not in task else held[0]


def entries(table: dict[str, Any]) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
    """By condition and algorithm, the entry of each column of `RULES` that is there."""
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for entry in table["best"]:
        for column, rule in RULES.items():
            if entry["rule"] == rule:
                found.setdefault((entry["task"], entry["algorithm"]), {})[column] = entry
    for entry in table["variants"]:
        if entry["rule"] == "TBPTT1" and entry["configuration"]["values"] == {"hidden_gain": 1.0}:
            found.setdefault((entry["task"], entry["algorithm"]), {})["TBPTT-1"] = entry
    return found


def number(value: float) -> str:
    """Three digits, without a zero before the point."""
    return re.sub(r"^(-?)0\.", r"\1.", f"{value:.3g}")


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """`rows`, the first of which is the head, as a table."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def bests(table: dict[str, Any], *, test: bool) -> str:
    """Means ± standard deviations over seeds, by condition."""
    rows = [["condition", *RULES]]
    for (task, algorithm), columns in entries(table).items():
        metric = test_of(task, next(iter(columns.values()))["values"]) if test else "train"
        cells = [f"{number(e['mean'][metric])} ± {number(e['deviation'][metric])}" if (e := columns.get(name)) else "-" for name in RULES]
        rows.append([f"{condition(task)}, {algorithm}" + (f": {metric}" if test else ""), *cells])
    return markdown(rows)


def differences(table: dict[str, Any], metric: str) -> list[tuple[str, dict[str, dict[str, Any]]]]:
    """COLA minus the best gain by condition, for both choices; `metric` is "train" or "test"."""
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for duel in table["duels"]:
        for short, choice in CHOICES.items():
            if duel["choice"] == choice:
                task, algorithm = duel["condition"]
                wanted = metric if metric == "train" else test_of(task, [each["metric"] for each in duel["differences"]])
                found.setdefault((task, algorithm), {})[short] = next(each for each in duel["differences"] if each["metric"] == wanted)
    return [(f"{condition(task)}, {algorithm}", each) for (task, algorithm), each in found.items()]


def half_width(difference: dict[str, Any]) -> float:
    """Of the t interval of 95 %."""
    return QUANTILES[max(known for known in QUANTILES if known <= difference["seeds"] - 1)] * difference["error"]


def duels(table: dict[str, Any]) -> str:
    """Both choices, both metrics; bold where the interval leaves zero out."""
    rows = [["condition", *(f"{metric}, {short}" for metric in ("train", "test") for short in CHOICES)]]
    held = {metric: dict(differences(table, metric)) for metric in ("train", "test")}
    for name in held["train"]:
        cells = []
        for metric in held:
            for short in CHOICES:
                each = held[metric][name].get(short)
                text = "-" if each is None else f"{each['mean']:+.2g} ± {half_width(each):.2g} ({each['wins']}/{each['seeds']})"
                if each is not None and each["verdict"] == "equal":
                    text = "equal"
                cells.append(f"**{text}**" if each is not None and each["verdict"] in ("better", "worse") else text)
        rows.append([name, *cells])
    return markdown(rows)


def draw(table: dict[str, Any], path: Path) -> None:
    """COLA minus the best gain in per cent of the latter's loss of training, with intervals, for both choices."""
    scale = {f"{condition(task)}, {algorithm}": columns["TBPTT-1 x gain"]["mean"]["train"] for (task, algorithm), columns in entries(table).items()}
    shown = [each for each in differences(table, "train") if len(each[1]) == len(CHOICES)][::-1]
    figure = Figure(figsize=(7.5, 0.28 * len(shown) + 1), layout="constrained")
    axes = figure.add_subplot()
    for aside, (short, label) in zip((0.12, -0.12), {"best": "chosen by all seeds", "left out": "chosen by the other seeds"}.items(), strict=True):
        means = [100 * each[short]["mean"] / scale[name] for name, each in shown]
        widths = [100 * half_width(each[short]) / scale[name] for name, each in shown]
        axes.errorbar(means, [place + aside for place in range(len(shown))], xerr=widths, fmt="o", markersize=4, linewidth=1, label=label)
    axes.axvline(0, color="0.6", linewidth=1, zorder=0)
    axes.set_yticks(range(len(shown)), [name for name, _ in shown], fontsize="small")
    axes.set_xlim(-60, 60)
    axes.set_xlabel("COLA minus best gain, loss of training, per cent", fontsize="small")
    figure.legend(frameon=False, fontsize="small", loc="outside upper right", ncols=2)
    figure.savefig(path, dpi=80)


@click.command(help=__doc__.split("\n\n")[0])
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--figure", type=click.Path(path_type=Path), help="Draw the differences of training here.")
def main(path: Path, figure: Path | None) -> None:
    """Print the tables of the study whose `table.json` is at PATH."""
    table = json.loads(path.read_text())
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for text in (bests(table, test=False), bests(table, test=True), duels(table)):
        console.print(text + "\n")
    if figure is not None:
        draw(table, figure)


if __name__ == "__main__":
    main()
