"""A neural ODE solved in parallel over depth against its walk, on the CPU.

    python docs/benchmarks/cpu_nanode_depth.py --json docs/benchmarks/results/cpu_nanode_depth.json

`tanh(W(t) x)` with a trigonometric path of order 2, Euler's method, two threads; forward without gradients, and forward and backward to all
coefficients. Both sides build their weights from the coefficients. Aim: at 32 channels, one sample and 1024 steps in float32, the parallel
solve takes at most a quarter of the time of the walk.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import torch
from depth_contestants import WAYS, Case, alternate, summary
from machine import environment, machine
from report import Table, milliseconds, progress, publish, ratio
from rich.console import Console

AIM = 4.0
SHAPES = [
    (32, 1, 64, "float32"),
    (32, 1, 256, "float32"),
    (32, 1, 1024, "float32"),
    (32, 1, 1024, "float64"),
    (32, 1, 4096, "float32"),
    (32, 8, 1024, "float32"),
    (32, 64, 1024, "float32"),
    (8, 1, 1024, "float32"),
    (64, 1, 1024, "float32"),
    (128, 1, 1024, "float32"),
]
QUICK_SHAPES = [(8, 1, 64, "float32")]


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--rounds", default=25, show_default=True, help="Turns of each contestant.")
@click.option("--threads", default=2, show_default=True)
@click.option("--quick", is_flag=True, help="A small shape, two rounds: shows that it runs, measures nothing.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write raw numbers here and tables beside it (.md).")
def main(rounds: int, threads: int, quick: bool, json_path: Path | None) -> None:
    """Time every shape, and publish."""
    torch.set_num_threads(threads)
    console = Console()
    shapes, rounds = (QUICK_SHAPES, 2) if quick else (SHAPES, rounds)
    results: dict[str, Any] = {"machine": machine(), "environment": environment("pararnn-core", "pararnn-nanode"), "quick": quick, "rows": []}
    with progress(console) as bar:
        task = bar.add_task("", total=2 * len(shapes))
        for dim, batch, steps, dtype in shapes:
            case = Case(dim, batch, steps, dtype=getattr(torch, dtype))
            row: dict[str, Any] = {"dim": dim, "batch": batch, "steps": steps, "dtype": dtype, "facts": case.facts()}
            for what, call in (("forward", case.forward), ("forward+backward", case.both)):
                bar.update(task, advance=1, description=f"{dim} x {batch} x {steps} {what}", refresh=True)
                runs = {way: lambda way=way, call=call: call(way) for way in ("walk", *WAYS)}
                times = alternate(runs, rounds=rounds, cuda=False, seconds_each=2.0)
                row[what] = {"ms": times, **summary(times)}
            results["rows"].append(row)
    publish([_table(what, results) for what in ("forward", "forward+backward")], results, console, json_path)


def _table(what: str, results: dict[str, Any]) -> Table:
    heads = ["channels", "samples", "steps", "dtype", "walk ms", *(f"{way} ms" for way in WAYS), *(f"walk / {way}" for way in WAYS), "auto", "error"]
    table = Table(f"Euler steps of tanh(W(t) x), {what}, medians", heads)
    for row in results["rows"]:
        medians = {way: row[what][way]["median_ms"] for way in ("walk", *WAYS)}
        ratios = [ratio(medians["walk"], medians[way]) for way in WAYS]
        if (row["dim"], row["batch"], row["steps"], row["dtype"]) == (32, 1, 1024, "float32"):
            ratios[0] += f" (aim {AIM:g}x)"
        error = row["facts"]["newton"]["error" if what == "forward" else "gradient_error"]
        cells = [row["dim"], row["batch"], row["steps"], row["dtype"], *(milliseconds(medians[way]) for way in ("walk", *WAYS))]
        table.add(*cells, *ratios, row["facts"]["plan"]["choice"], f"{error:.1e}")
    return table


if __name__ == "__main__":
    main()
