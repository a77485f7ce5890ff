"""Learning online on a CPU: the time of a step of every rule, and the memory that a stream needs as it grows.

    python docs/benchmarks/cpu_cola.py --json docs/benchmarks/results/cpu_cola.json

A tanh network with 3 inputs and one output, batch 16, float32, one thread, squared error at every step: 64 units in runs of 100 steps, 1024 units
in runs of 20. With the optimizer, SGD moves the weights at every step (TBPTT(10): every tenth, BPTT: at the end of a run); without it,
gradients are only added up. Contestants take turns; the time is the median of all turns over the steps of a run.

    autograd loop by hand    RNNCell, Linear, h.detach(), loss.backward(), optimizer.step(), zero_grad: TBPTT-1 as one writes it
    forward loop, no_grad    the same network without learning, in the leanest loop

Aims at a step of COLA of at most 1.8 times one of TBPTT1 with 64 units, and 1.2 times with 1024.

Peaks of resident memory are those of fresh processes, 64 units, batch 16, a step of SGD at every time step for COLA, one at the end for BPTT.
Aims at a peak of COLA at 100 000 steps within 2 MiB of that at 100.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
from machine import environment, machine
from report import Table, progress, publish, ratio
from rich.console import Console
from stream_contestants import BY_HAND, FORWARD, RULES, Run, by_hand, data, forward, rule
from worker import turn

SHAPES = {"H=64, B=16": (64, 16, 100), "H=1024, B=16": (1024, 16, 20)}
"""Units, samples, steps of a run."""
PARTS = {"without optimizer": "accumulate", "with optimizer": "step"}
BASE = "TBPTT1"
PEAKS = {"COLA": (100, 1000, 10_000, 100_000), "BPTT": (100, 1000, 10_000, 40_000)}
PAUSE_SECONDS = 0.02
SECONDS_A_TURN = 0.3


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--rounds", default=15, show_default=True, help="Turns of each contestant.")
@click.option("--quick", is_flag=True, help="Short runs, two rounds: shows that it runs, measures nothing.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write raw numbers here and tables beside it (.md).")
def main(rounds: int, quick: bool, json_path: Path | None) -> None:
    """Measure times in turns, then memory, and publish."""
    torch.set_num_threads(1)
    console = Console()
    shapes = {"H=16, B=4": (16, 4, 10)} if quick else SHAPES
    peaks = {name: lengths[:2] for name, lengths in PEAKS.items()} if quick else PEAKS
    rounds = 2 if quick else rounds
    results: dict[str, Any] = {"machine": machine(), "quick": quick, "rounds": rounds, "cases": {}, "peaks": {}}
    with progress(console) as bar:
        task = bar.add_task("", total=len(shapes) * len(PARTS) * rounds + sum(map(len, peaks.values())))
        for shape, (state, batch, steps) in shapes.items():
            for part, update in PARTS.items():
                runs = contestants(state, batch, update)
                calls = {name: partial(run, *data(steps, batch)) for name, run in runs.items()}
                raw: dict[str, list[float]] = {name: [] for name in runs}
                for call in calls.values():
                    turn(call, calls=2, seconds=SECONDS_A_TURN)
                for _ in range(rounds):
                    for name, call in calls.items():
                        time.sleep(PAUSE_SECONDS)
                        raw[name] += turn(call, calls=5, seconds=SECONDS_A_TURN)
                    bar.update(task, advance=1, description=f"{shape}, {part}", refresh=True)
                microseconds = {name: median(times) * 1e3 / steps for name, times in raw.items()}
                results["cases"][f"{shape}, {part}"] = {"steps": steps, "run_ms": raw, "step_us": microseconds}
        for name, lengths in peaks.items():
            results["peaks"][name] = {}
            for length in lengths:
                results["peaks"][name][str(length)] = peak_of(name, length)
                bar.update(task, advance=1, description=f"memory, {name}, T={length}", refresh=True)
    results["environment"] = environment("pararnn-core", "pararnn-cola")
    publish([times_table(results), peaks_table(results)], results, console, json_path)


def contestants(state: int, batch: int, update: str) -> dict[str, Run]:
    """All of them; the forward loop has no optimizer in either part."""
    runs = {name: rule(name, state, update=update) for name in RULES}
    return {FORWARD: forward(state, batch), BY_HAND: by_hand(state, batch, update=update), **runs}


def peak_of(name: str, length: int) -> dict[str, float]:
    """What a fresh process tells of its peak."""
    command = [sys.executable, str(Path(__file__).with_name("peak_cola.py")), name, str(length)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout)


def times_table(results: dict[str, Any]) -> Table:
    """Microseconds of a step, and what they are of TBPTT1's."""
    cases = results["cases"]
    found = Table("one step, us (and over TBPTT1), float32, one thread", ["", *cases])
    for name in next(iter(cases.values()))["step_us"]:
        times = [(case["step_us"][name], case["step_us"][BASE]) for case in cases.values()]
        found.add(name, *(f"{mine:.4g} ({ratio(mine, base)})" for mine, base in times))
    return found


def peaks_table(results: dict[str, Any]) -> Table:
    """MiB at the highest by length, and tensors that a step saves for a backward pass."""
    lengths = sorted({int(length) for found in results["peaks"].values() for length in found})
    heads = ["peak resident memory, MiB (tensors that a step saves)", *(f"T={length}" for length in lengths)]
    table = Table("fresh processes, H=64, B=16", heads)
    for name, found in results["peaks"].items():
        cells = [found.get(str(length)) for length in lengths]
        table.add(name, *("-" if cell is None else f"{cell['peak_mib']:.1f} ({cell['saved_a_step']:g})" for cell in cells))
    return table


if __name__ == "__main__":
    main()
