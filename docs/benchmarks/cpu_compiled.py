"""Cells compiled to C on the CPU: ParaCfC and a third party's minGRU by the native backend, in plain torch, and pararnn-torch, in one run.

    python docs/benchmarks/cpu_compiled.py --peer-python peer/bin/python --json docs/benchmarks/results/cpu_compiled.json

`peer_pararnn_torch.py` says how to make the peer's environment; without `--peer-python` the peer is left out. Float32; contestants take turns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
from machine import machine
from report import Table, milliseconds, progress, publish, ratio
from rich.console import Console
from worker import BOTH, FORWARD, Case, Worker

CASES = (Case(8, 4096, 64), Case(32, 1024, 128), Case(1, 65536, 16))
QUICK_CASES = (Case(2, 512, 64),)
# Time for pools of threads to fall asleep, so that the previous contestant does not spin on a core that this one needs.
PAUSE_SECONDS = 0.1
CALLS_A_TURN, SECONDS_A_TURN = 5, 0.5
NATIVE, PLAIN, PEER = "native", "plain torch", "pararnn-torch"
THIRD, THIRD_PLAIN = "minGRU, native", "minGRU, plain torch"
OURS = {
    NATIVE: ["--backend", "native"],
    PLAIN: ["--backend", "torch"],
    THIRD: ["--cell", "MinGRU", "--backend", "native"],
    THIRD_PLAIN: ["--cell", "MinGRU", "--backend", "torch"],
}
# The time of another divided by that of the native backend must be at least this, at the first two shapes.
TARGETS = {PLAIN: 4, PEER: 12}
TARGET_CASES = CASES[:2]


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--peer-python", type=click.Path(exists=True, dir_okay=False), help="Interpreter of the peer's environment.")
@click.option("--rounds", default=5, show_default=True, help="Turns of each contestant.")
@click.option("--threads", default=1, show_default=True)
@click.option("--quick", is_flag=True, help="A small shape, two rounds: shows that it runs, measures nothing.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write raw numbers here and tables beside it (.md).")
def main(peer_python: str | None, rounds: int, threads: int, quick: bool, json_path: Path | None) -> None:
    """Run every case, and publish."""
    console = Console()
    cases, rounds = (QUICK_CASES, 2) if quick else (CASES, rounds)
    results: dict[str, Any] = {"machine": machine(), "quick": quick, "threads": threads, "rounds": rounds, "cases": []}
    with ExitStack() as stack:
        names = [*OURS, *([PEER] if peer_python else [])]
        workers = {name: stack.enter_context(start(name, peer_python, threads)) for name in names}
        results["environments"] = {name: worker.ask("facts") for name, worker in workers.items()}
        with progress(console) as bar:
            task = bar.add_task("", total=len(cases) * 2 * (1 + rounds))
            for case in cases:
                results["cases"].append(measure(case, workers, rounds, partial(bar.update, task, advance=1, refresh=True)))
    publish([times(results), ratios(results), agreements(results), verdicts(results)], results, console, json_path)


def start(name: str, peer_python: str | None, threads: int) -> Worker:
    """The process of a contestant."""
    if name == PEER:
        return Worker(name, str(peer_python), "peer_pararnn_torch.py", threads=threads, own_path=False)
    return Worker(name, sys.executable, "ours_compiled.py", threads=threads, arguments=OURS[name])


def measure(case: Case, workers: dict[str, Worker], rounds: int, advance: Callable[..., None]) -> dict[str, Any]:
    """Agreement, and milliseconds of every call of every contestant, by turns; the first turn is not counted."""
    agreement = {}
    for name, worker in workers.items():
        worker.ask("load", case=case)
        agreement[name] = worker.ask("agreement", case=case)
    raw: dict[str, dict[str, list[float]]] = {}
    for what in (FORWARD, BOTH):
        raw[what] = {name: [] for name in workers}
        for round_number in range(rounds + 1):
            for name, worker in workers.items():
                time.sleep(PAUSE_SECONDS)
                answer = worker.ask("turn", call=f"parallel/{what}", calls=CALLS_A_TURN if round_number else 1, seconds=SECONDS_A_TURN)
                raw[what][name] += answer["ms"] if round_number else []
            advance(description=f"{case} {what}")
    medians = {what: {name: median(values) for name, values in found.items()} for what, found in raw.items()}
    return {"case": [case.batch, case.length, case.state], "agreement": agreement, "ms": raw, "median_ms": medians}


def times(results: dict[str, Any]) -> Table:
    """Medians."""
    names = list(results["environments"])
    table = Table(f"Median time, ms, {results['threads']} thread(s)", ["(B, T, d_h)", "what", *names])
    for entry in results["cases"]:
        for what, found in entry["median_ms"].items():
            table.add(Case(*entry["case"]), what, *(milliseconds(found[name]) for name in names))
    return table


def ratios(results: dict[str, Any]) -> Table:
    """What the native backend gains."""
    pairs = ((PLAIN, NATIVE), (PEER, NATIVE), (THIRD_PLAIN, THIRD), (NATIVE, THIRD))
    table = Table("Ratios of times", ["(B, T, d_h)", "what", *(f"{slow} / {fast}" for slow, fast in pairs)])
    for entry in results["cases"]:
        for what, found in entry["median_ms"].items():
            table.add(Case(*entry["case"]), what, *(ratio(found.get(slow), found.get(fast)) for slow, fast in pairs))
    return table


def agreements(results: dict[str, Any]) -> Table:
    """Errors, and what ran."""
    table = Table("Largest difference to the walk of the same package, fp32", ["(B, T, d_h)", "contestant", "difference", "backend", "plan"])
    for entry in results["cases"]:
        for name, found in entry["agreement"].items():
            table.add(Case(*entry["case"]), name, f"{found['max_abs']:.1e}", found.get("backend", "-"), found.get("plan", "-"))
    return table


def verdicts(results: dict[str, Any]) -> Table:
    """Every target that the run measured."""
    table = Table("Targets (native)", ["(B, T, d_h)", "what", "target", "measured", "reached"])
    for entry in results["cases"]:
        for what, found in entry["median_ms"].items():
            for other, least in TARGETS.items() if Case(*entry["case"]) in TARGET_CASES else ():
                if other in found:
                    measured = found[other] / found[NATIVE]
                    said = "yes" if measured >= least else "NO"
                    table.add(Case(*entry["case"]), f"{what}, {other}", f">= {least}x", f"{measured:.2f}x", said)
    return table


if __name__ == "__main__":
    main()
