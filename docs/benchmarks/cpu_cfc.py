"""ParaCfC on the CPU: the parallel solve against the loop a user writes, our own walk, and pararnn-torch, in one run on one machine.

    python docs/benchmarks/cpu_cfc.py --peer-python peer/bin/python --json docs/benchmarks/results/cpu_cfc.json

`peer_pararnn_torch.py` says how to make the peer's environment; without `--peer-python` the peer is left out. The README beside this
file says what is measured.
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
from targets import verdicts
from worker import BOTH, FORWARD, Case, Worker

CASES = (Case(1, 65536, 16), Case(1, 16384, 64), Case(8, 4096, 64), Case(8, 4097, 64), Case(32, 1024, 128))
QUICK_CASES = (Case(1, 2048, 16), Case(2, 512, 64), Case(2, 513, 64))
MEMORY_CASE = Case(8, 4096, 64)
QUICK_MEMORY_CASE = Case(2, 512, 64)
# Time for pools of threads to fall asleep, so that the previous contestant does not spin on a core that this one needs.
PAUSE_SECONDS = 0.1
CALLS_A_TURN = 5
SECONDS_A_TURN = 0.5

# A contestant is (its worker, the call there); the loop and the walk run in plain torch, in the process of our plain worker.
OURS, NUMBA, LOOP, WALK, PEER = "ours", "ours+numba", "loop", "walk", "pararnn-torch"
CONTESTANTS = {OURS: (OURS, "parallel"), LOOP: (OURS, "loop"), PEER: (PEER, "parallel"), NUMBA: (NUMBA, "parallel"), WALK: (OURS, "walk")}


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--peer-python", type=click.Path(exists=True, dir_okay=False), help="Interpreter of the peer's environment.")
@click.option("--rounds", default=5, show_default=True, help="Turns of each contestant.")
@click.option("--threads", default=2, show_default=True)
@click.option("--quick", is_flag=True, help="Small shapes, two rounds: shows that it runs, measures nothing.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write raw numbers here and tables beside it (.md).")
def main(peer_python: str | None, rounds: int, threads: int, quick: bool, json_path: Path | None) -> None:
    """Run every case, then the memory, and publish."""
    console = Console()
    cases = QUICK_CASES if quick else CASES
    results: dict[str, Any] = {"machine": machine(), "quick": quick, "threads": threads, "rounds": 2 if quick else rounds, "cases": []}
    with ExitStack() as stack:
        workers = {name: stack.enter_context(_start(name, peer_python, threads)) for name in _names(peer_python)}
        results["environments"] = {name: worker.ask("facts") for name, worker in workers.items()}
        if results["environments"][NUMBA]["distributions"]["numba"] is None:
            console.print("numba is not installed: without the contestant ours+numba")
            del workers[NUMBA]
        with progress(console) as bar:
            task = bar.add_task("", total=len(cases) * 2 * (1 + results["rounds"]))
            for case in cases:
                results["cases"].append(_measure(case, workers, results["rounds"], partial(bar.update, task, advance=1, refresh=True)))
    results["memory"] = _memory(QUICK_MEMORY_CASE if quick else MEMORY_CASE, list(workers), peer_python, threads)
    ratios = [_ratios(results, mine) for mine in (OURS, NUMBA) if mine in workers]
    publish([_times(results), *ratios, _agreements(results), _memories(results), verdicts(results)], results, console, json_path)


def _names(peer_python: str | None) -> list[str]:
    return [OURS, NUMBA, *([PEER] if peer_python else [])]


def _start(name: str, peer_python: str | None, threads: int) -> Worker:
    if name == PEER:
        return Worker(name, str(peer_python), "peer_pararnn_torch.py", threads=threads, own_path=False)
    return Worker(name, sys.executable, "ours_pararnn.py", threads=threads, arguments=["--plain"] if name == OURS else [])


def _measure(case: Case, workers: dict[str, Worker], rounds: int, advance: Callable[..., None]) -> dict[str, Any]:
    agreement = {}
    for name, worker in workers.items():
        worker.ask("load", case=case)
        agreement[name] = worker.ask("agreement", case=case)
    contestants = {name: (workers[home], call) for name, (home, call) in CONTESTANTS.items() if home in workers}
    raw: dict[str, dict[str, list[float]]] = {}
    for what in (FORWARD, BOTH):
        times: dict[str, list[float]] = {name: [] for name in contestants}
        for round_number in range(rounds + 1):
            for name, (worker, call) in contestants.items():
                time.sleep(PAUSE_SECONDS)
                first = round_number == 0
                answer = worker.ask("turn", call=f"{call}/{what}", calls=1 if first else CALLS_A_TURN, seconds=SECONDS_A_TURN)
                if not first:
                    times[name] += answer["ms"]
            advance(description=f"{case} {what}")
        raw[what] = times
    medians = {what: {name: median(values) for name, values in times.items()} for what, times in raw.items()}
    return {"case": [case.batch, case.length, case.state], "agreement": agreement, "ms": raw, "median_ms": medians}


def _memory(case: Case, names: list[str], peer_python: str | None, threads: int) -> dict[str, Any]:
    extra = {}
    for contestant, (home, call) in CONTESTANTS.items():
        if home in names:
            with _start(home, peer_python, threads) as worker:
                extra[contestant] = worker.ask("memory", case=case, call=f"{call}/{BOTH}")
    return {"case": [case.batch, case.length, case.state], "extra_peak": extra}


def _label(case: list[int]) -> str:
    return str(Case(*case))


def _times(results: dict[str, Any]) -> Table:
    table = Table("Median time, ms", ["(B, T, d_h)", "what", *CONTESTANTS])
    for entry in results["cases"]:
        for what, times in entry["median_ms"].items():
            table.add(_label(entry["case"]), what, *(milliseconds(times.get(name)) for name in CONTESTANTS))
    return table


def _ratios(results: dict[str, Any], mine: str) -> Table:
    table = Table(f"Time of the others / time of {mine}", ["(B, T, d_h)", "what", LOOP, WALK, PEER])
    for entry in results["cases"]:
        for what, times in entry["median_ms"].items():
            table.add(_label(entry["case"]), what, *(ratio(times.get(other), times.get(mine)) for other in (LOOP, WALK, PEER)))
    return table


def _agreements(results: dict[str, Any]) -> Table:
    table = Table("Largest difference of the parallel states to the package's own loop, fp32", ["(B, T, d_h)", OURS, NUMBA, PEER])
    for entry in results["cases"]:
        found = entry["agreement"]
        table.add(_label(entry["case"]), *(f"{found[name]['max_abs']:.1e}" if name in found else "-" for name in (OURS, NUMBA, PEER)))
    return table


def _memories(results: dict[str, Any]) -> Table:
    memory = results["memory"]
    table = Table(f"Extra peak memory of forward+backward at {_label(memory['case'])}, MiB", ["contestant", "first call", "second call"])
    for name, extra in memory["extra_peak"].items():
        table.add(name, f"{extra['first_mib']:.0f}", f"{extra['again_mib']:.0f}")
    return table


if __name__ == "__main__":
    main()
