"""Whether the planner chooses well: the planned solve against every fixed interval and against the walk, over a grid of shapes.

    python docs/benchmarks/planner.py --plain --json docs/benchmarks/results/planner.json

Aims, for every shape: at most 1.15x the time of the best fixed interval, and never slower than the walk (`sequential_apply`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
from machine import environment, machine
from ours_pararnn import hide_numba
from report import Table, milliseconds, progress, publish
from rich.console import Console
from worker import BOTH, FEATURES, FORWARD, Call, Case, calls_of, turn

ELEMENTS_AT_MOST = 2**23
GRID = tuple(Case(*shape) for shape in product((1, 8, 64), (64, 512, 4096, 32768), (8, 64, 256)))
QUICK_GRID = tuple(Case(*shape) for shape in product((1, 8), (64, 256), (8, 64)))
INTERVALS = (1, 4, 16, 64, 256, 1024)
PLANNED, WALK, AGAIN = "planned", "walk", "walk again"
TO_BEST_AT_MOST = 1.15
# A contender that takes this many times the quickest in the warm-up cannot be the best one; its warm-up time stands for it.
HOPELESS = 3.0
CALLS_A_TURN = 5
SECONDS_A_TURN = 0.2


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--rounds", default=5, show_default=True, help="Turns of each contender.")
@click.option("--threads", default=2, show_default=True)
@click.option("--plain", is_flag=True, help="Hide numba, so that only plain torch is at work.")
@click.option("--what", type=click.Choice([FORWARD, BOTH]), default=FORWARD, show_default=True)
@click.option("--quick", is_flag=True, help="Eight small shapes, one round: shows that it runs, measures nothing.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write raw numbers here and tables beside it (.md).")
def main(rounds: int, threads: int, plain: bool, what: str, quick: bool, json_path: Path | None) -> None:
    """Measure every shape of the grid, and publish."""
    if plain:
        hide_numba()
    torch.set_num_threads(threads)
    console = Console()
    cases = [case for case in (QUICK_GRID if quick else GRID) if case.batch * case.length * case.state <= ELEMENTS_AT_MOST]
    facts = environment("pararnn-core", "pararnn-cfc", "numba") | {"numba_hidden": plain}
    results: dict[str, Any] = {"machine": machine(), "environment": facts, "quick": quick, "what": what, "cases": []}
    with progress(console) as bar:
        task = bar.add_task("", total=len(cases))
        for case in cases:
            bar.update(task, description=str(case), refresh=True)
            results["cases"].append(_measure(case, what, 1 if quick else rounds))
            bar.update(task, advance=1, refresh=True)
    publish([_shapes(results), _summary(results)], results, console, json_path)


def _measure(case: Case, what: str, rounds: int) -> dict[str, Any]:
    contenders = _contenders(case, what)
    warm = {name: _quickest(call) for name, call in contenders.items()}
    quickest = min(warm.values())
    raw = {name: [] if name in (PLANNED, WALK, AGAIN) or warm[name] < HOPELESS * quickest else [warm[name]] for name in contenders}
    still_in = [name for name, times in raw.items() if not times]
    for _ in range(rounds):
        for name in still_in:
            raw[name] += turn(contenders[name], calls=CALLS_A_TURN, seconds=SECONDS_A_TURN)
    medians = {name: median(times) for name, times in raw.items()}
    best = min((name for name in medians if name not in (PLANNED, WALK, AGAIN)), key=lambda name: medians[name])
    return {
        "case": [case.batch, case.length, case.state],
        "ms": raw,
        "median_ms": medians,
        "best_interval": int(best),
        "planned_to_best": medians[PLANNED] / medians[best],
        "planned_to_walk": medians[PLANNED] / medians[WALK],
        "walk_to_itself": max(medians[WALK], medians[AGAIN]) / min(medians[WALK], medians[AGAIN]),
    }


def _quickest(call: Call) -> float:
    # The first call may compile; a second one is worth its time only where it is short.
    first = turn(call, calls=1, seconds=0)[0]
    return first if first > 2000 else min(first, *turn(call, calls=2, seconds=SECONDS_A_TURN))


def _contenders(case: Case, what: str) -> dict[str, Call]:
    from pararnn import NewtonConfig, ParaCfC, newton_apply, sequential_apply

    torch.manual_seed(0)
    cell = ParaCfC(FEATURES + 1, case.state)

    def solve(interval: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        config = NewtonConfig(interval=interval, backend="torch")
        return lambda x: newton_apply(cell, x, config)

    runs: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {PLANNED: solve("auto"), WALK: lambda x: sequential_apply(cell, x)}
    fixed = (*(interval for interval in INTERVALS if interval < case.length), case.length)
    runs |= {str(interval): solve(interval) for interval in fixed}
    # The same thing a second time: how far apart two medians lie that ought to be equal.
    runs[AGAIN] = runs[WALK]
    return {name: calls_of(name, run, cell, case)[f"{name}/{what}"] for name, run in runs.items()}


def _shapes(results: dict[str, Any]) -> Table:
    heads = ["(B, T, d_h)", PLANNED, WALK, *(f"L={interval}" for interval in INTERVALS), "L=T", "best L", "/ best", "/ walk"]
    table = Table(f"Median time of {results['what']}, ms", heads)
    for entry in results["cases"]:
        times, (_, length, _) = entry["median_ms"], entry["case"]
        columns = [PLANNED, WALK, *(str(interval) if interval < length else "" for interval in INTERVALS), str(length)]
        ratios = (f"{entry['planned_to_best']:.2f}x", f"{entry['planned_to_walk']:.2f}x")
        table.add(Case(*entry["case"]), *(milliseconds(times.get(name)) for name in columns), entry["best_interval"], *ratios)
    return table


def _summary(results: dict[str, Any]) -> Table:
    table = Table(f"Planner over {len(results['cases'])} shapes", ["ratio of times", "aim", "worst", "at", "shapes that miss"])
    rows = (
        ("planned_to_best", "planned / best fixed interval", TO_BEST_AT_MOST),
        ("planned_to_walk", "planned / walk", 1.0),
        ("walk_to_itself", "walk / the same walk (noise)", None),
    )
    for key, name, aim in rows:
        worst = max(results["cases"], key=lambda entry: entry[key])
        missed = "" if aim is None else sum(entry[key] > aim for entry in results["cases"])
        table.add(name, "" if aim is None else f"<= {aim:g}x", f"{worst[key]:.2f}x", Case(*worst["case"]), missed)
    return table


if __name__ == "__main__":
    main()
