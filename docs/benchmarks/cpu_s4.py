"""The Cauchy and Vandermonde products of S4 on the CPU: every backend against the definition, and against KeOps as public S4 codes use it.

    python docs/benchmarks/cpu_s4.py --json docs/benchmarks/results/cpu_s4.json

One thread, float32. Aims at 64 copies, 32 conjugate pairs and a length of 16384: the Vandermonde product forward 25 times as fast as its
definition and 20 times as KeOps, with at most 20 MiB; the Cauchy product forward and backward 15 times and 6 times. The first run
compiles: a minute or two.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import click
from machine import machine
from ours_s4 import BACKENDS, REFERENCE
from report import Table, milliseconds, progress, publish, ratio
from rich.console import Console
from worker import BOTH, FORWARD, Case, Worker

CASES = (Case(64, 1024, 32), Case(64, 16384, 32))
QUICK_CASES = (Case(2, 64, 4),)
PAUSE_SECONDS = 0.05
CALLS_A_TURN = 20
SECONDS_A_TURN = 0.3


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--rounds", default=7, show_default=True, help="Turns of each contestant.")
@click.option("--quick", is_flag=True, help="A small shape, two rounds: shows that it runs, measures nothing.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write raw numbers here and tables beside it (.md).")
def main(rounds: int, quick: bool, json_path: Path | None) -> None:
    """Measure every case in one process with one thread, and publish."""
    console = Console()
    cases, rounds = (QUICK_CASES, 2) if quick else (CASES, rounds)
    results: dict[str, Any] = {"machine": machine(), "quick": quick, "rounds": rounds, "cases": {}}
    with Worker("s4", sys.executable, "ours_s4.py", threads=1) as worker, progress(console) as bar:
        task = bar.add_task("", total=len(cases) * rounds)
        for case in cases:
            calls = worker.ask("load", case=case)["calls"]
            raw: dict[str, list[float]] = {call: [] for call in calls}
            for call in calls:
                worker.ask("turn", call=call, calls=2, seconds=SECONDS_A_TURN)
            for _ in range(rounds):
                for call in calls:
                    time.sleep(PAUSE_SECONDS)
                    raw[call] += worker.ask("turn", call=call, calls=CALLS_A_TURN, seconds=SECONDS_A_TURN)["ms"]
                bar.update(task, advance=1, description=str(case), refresh=True)
            results["cases"][str(case)] = {
                "ms": raw,
                "median_ms": {call: median(values) for call, values in raw.items()},
                "memory": {call: worker.ask("memory", case=case, call=call)["again_mib"] for call in calls},
                "error": worker.ask("agreement", case=case),
            }
        results["environment"] = worker.ask("facts")
    parts = [(op, part) for op in BACKENDS for part in (FORWARD, BOTH)]
    publish([_table(*part, case, found) for case, found in results["cases"].items() for part in parts], results, console, json_path)


def _table(op: str, part: str, case: str, found: dict[str, Any]) -> Table:
    table = Table(f"{op}, {part}, (copies, length, pairs) = {case}, float32", ["backend", "ms", "naive /", "KeOps /", "MiB", "error"])
    times, memory = found["median_ms"], found["memory"]
    naive, keops = (times.get(f"{op}/{other}/{part}") for other in ("naive", REFERENCE))
    for backend in (*BACKENDS[op], REFERENCE):
        name = f"{op}/{backend}"
        if name not in found["error"]:
            table.add(backend, *["-"] * 5)
            continue
        mine = times[f"{name}/{part}"]
        table.add(
            backend, milliseconds(mine), ratio(naive, mine), ratio(keops, mine), f"{memory[f'{name}/{part}']:.0f}", f"{found['error'][name]:.1e}"
        )
    return table


if __name__ == "__main__":
    main()
