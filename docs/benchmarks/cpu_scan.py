"""The diagonal scan on the CPU against an addition of the same size, which is what moving the memory alone costs.

    python docs/benchmarks/cpu_scan.py --json docs/benchmarks/results/cpu_scan.json

Backends torch and numba, one and two threads, each thread count in a process of its own. Aims: at most 12 additions in plain torch, at
most 2 with numba.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import click
from machine import machine
from report import Table, milliseconds, progress, publish, ratio
from rich.console import Console
from worker import Case, Worker

CASE = Case(8, 4096, 64)
QUICK_CASE = Case(2, 128, 8)
AT_MOST = {"scan/torch": 12.0, "scan/numba": 2.0}
PAUSE_SECONDS = 0.05
CALLS_A_TURN = 20
SECONDS_A_TURN = 0.3


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--rounds", default=15, show_default=True, help="Turns of each contestant.")
@click.option("--quick", is_flag=True, help="A small shape, two rounds: shows that it runs, measures nothing.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write raw numbers here and tables beside it (.md).")
def main(rounds: int, quick: bool, json_path: Path | None) -> None:
    """Run with one thread and with two, and publish."""
    console = Console()
    case = QUICK_CASE if quick else CASE
    rounds = 2 if quick else rounds
    results: dict[str, Any] = {"machine": machine(), "quick": quick, "case": [case.batch, case.length, case.state], "rounds": rounds, "threads": {}}
    with progress(console) as bar:
        task = bar.add_task("", total=2 * rounds)
        for threads in (1, 2):
            with Worker("scan", sys.executable, "ours_scan.py", threads=threads) as worker:
                calls = worker.ask("load", case=case)["calls"]
                raw: dict[str, list[float]] = {call: [] for call in calls}
                for call in calls:
                    worker.ask("turn", call=call, calls=3, seconds=SECONDS_A_TURN)
                for _ in range(rounds):
                    for call in calls:
                        time.sleep(PAUSE_SECONDS)
                        raw[call] += worker.ask("turn", call=call, calls=CALLS_A_TURN, seconds=SECONDS_A_TURN)["ms"]
                    bar.update(task, advance=1, description=f"{threads} thread(s)", refresh=True)
                medians = {call: median(values) for call, values in raw.items()}
                facts = {"environment": worker.ask("facts"), "agreement": worker.ask("agreement", case=case)}
                results["threads"][threads] = {**facts, "ms": raw, "median_ms": medians}
    publish([_table(case, results)], results, console, json_path)


def _table(case: Case, results: dict[str, Any]) -> Table:
    heads = ["threads", "call", "ms", "/ add", "aim", "largest error"]
    table = Table(f"Diagonal scan at {case}, fp32, forward", heads)
    for threads, found in results["threads"].items():
        for call in ("add", *AT_MOST):
            checked = found["agreement"].get(call.removeprefix("scan/"), {})
            if "cannot" in checked:
                table.add(threads, call, "-", "-", f"<= {AT_MOST[call]:g}x", "cannot serve: " + checked["cannot"].splitlines()[0])
                continue
            time_ms = found["median_ms"][call]
            aim = f"<= {AT_MOST[call]:g}x" if call in AT_MOST else ""
            table.add(
                threads, call, milliseconds(time_ms), ratio(time_ms, found["median_ms"]["add"]), aim, f"{checked['max_abs']:.1e}" if checked else ""
            )
    return table


if __name__ == "__main__":
    main()
