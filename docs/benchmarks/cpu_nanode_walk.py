"""A thousand Euler steps of a neural ODE with moving weights, against bare Python loops and torchdiffeq.

    python docs/benchmarks/cpu_nanode_walk.py --json docs/benchmarks/results/cpu_nanode_walk.json

`tanh(W(t) x)` with a trigonometric path of order 2 and 32 channels, batch 1, float32, one thread. Aims at no more than 1.3 times the leanest loop of
the same arithmetic, which also builds all weights in one product. Forward under `torch.no_grad()`, and forward and backward to the state
and the coefficients.

    ours             NANODE(DenseField(32, TrigPath((32, 32), 2)), steps=1000), called as a module
    lean loop        weights on the grid in one product, `unbind`, then `torch.add(x, tanh(linear(x, W)), alpha=h)` for each step
    plain loop       the same weights, `x = x + h * torch.tanh(x @ W.T)`
    torchdiffeq      odeint, method euler, step_size 1/1000; its function builds W(t) when called, as it must
    torchdiffeq, W   the same with the weights on the grid in one product beforehand, handed out in the order of calls
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
import torch.nn.functional as F
from machine import environment, machine
from report import Table, milliseconds, progress, publish, ratio
from rich.console import Console
from torch import Tensor
from worker import turn

from pararnn_nanode import NANODE, DenseField, TrigPath

Run = Callable[[Tensor], Tensor]
OURS, LEAN, PLAIN, PEER, PEER_GRID = "ours", "lean loop", "plain loop", "torchdiffeq", "torchdiffeq, W"
PARTS = ("forward", "forward+backward")
CHANNELS, ORDER = 32, 2
PAUSE_SECONDS = 0.02
SECONDS_A_TURN = 0.3


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--rounds", default=15, show_default=True, help="Turns of each contestant.")
@click.option("--quick", is_flag=True, help="Fifty steps, two rounds: shows that it runs, measures nothing.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write raw numbers here and tables beside it (.md).")
def main(rounds: int, quick: bool, json_path: Path | None) -> None:
    """Measure both parts in turns, and publish."""
    torch.set_num_threads(1)
    console = Console()
    steps, rounds = (50, 2) if quick else (1000, rounds)
    results: dict[str, Any] = {"machine": machine(), "quick": quick, "rounds": rounds, "steps": steps, "cases": {}}
    block, runs, x = contestants(steps)
    calls = {part: {name: call(part, run, block, x) for name, run in runs.items()} for part in PARTS}
    with progress(console) as bar:
        task = bar.add_task("", total=len(PARTS) * rounds)
        for part in PARTS:
            raw: dict[str, list[float]] = {name: [] for name in runs}
            for warm in calls[part].values():
                turn(warm, calls=2, seconds=SECONDS_A_TURN)
            for _ in range(rounds):
                for name, run in calls[part].items():
                    time.sleep(PAUSE_SECONDS)
                    raw[name] += turn(run, calls=5, seconds=SECONDS_A_TURN)
                bar.update(task, advance=1, description=part, refresh=True)
            results["cases"][part] = {"ms": raw, "median_ms": {name: median(values) for name, values in raw.items()}}
    with torch.no_grad():
        expected = runs[LEAN](x)
        results["difference"] = {name: float((run(x) - expected).abs().max()) for name, run in runs.items()}
    results["environment"] = environment("pararnn-core", "pararnn-nanode", "torchdiffeq")
    publish([table(results)], results, console, json_path)


def contestants(steps: int) -> tuple[NANODE, dict[str, Run], Tensor]:
    """The block whose coefficients all of them use, what each does with a state, and that state."""
    torch.manual_seed(0)
    path = TrigPath((CHANNELS, CHANNELS), ORDER)
    block = NANODE(DenseField(CHANNELS, path), steps=steps, method="euler")
    h = 1 / steps

    def weights() -> tuple[Tensor, ...]:
        return path.grid(torch.arange(steps, dtype=torch.float64) * h).unbind(0)

    def lean(x: Tensor) -> Tensor:
        for weight in weights():
            x = torch.add(x, torch.tanh(F.linear(x, weight)), alpha=h)
        return x

    def plain(x: Tensor) -> Tensor:
        for weight in weights():
            x = x + h * torch.tanh(x @ weight.T)
        return x

    runs: dict[str, Run] = {OURS: block, LEAN: lean, PLAIN: plain}
    if importlib.util.find_spec("torchdiffeq") is not None:
        runs |= peers(path, weights, h)
    return block, runs, torch.randn(1, CHANNELS)


def peers(path: TrigPath, weights: Callable[[], tuple[Tensor, ...]], h: float) -> dict[str, Run]:
    """torchdiffeq as its documentation shows it, and with weights that were made beforehand."""
    from torchdiffeq import odeint

    ends, options = torch.tensor([0.0, 1.0]), {"step_size": h}

    def peer(x: Tensor) -> Tensor:
        return odeint(lambda t, x: torch.tanh(F.linear(x, path.at(t))), x, ends, method="euler", options=options)[-1]

    def peer_grid(x: Tensor) -> Tensor:
        # Rounding of 1 / step_size may ask for one step more than there are weights; the last one then serves twice.
        made = weights()
        handed = iter((*made, made[-1]))
        return odeint(lambda t, x: torch.tanh(F.linear(x, next(handed))), x, ends, method="euler", options=options)[-1]

    return {PEER: peer, PEER_GRID: peer_grid}


def call(part: str, run: Run, block: NANODE, x: Tensor) -> Callable[[], object]:
    """One call of a part."""

    def forward() -> None:
        with torch.no_grad():
            run(x)

    def both() -> None:
        block.zero_grad(set_to_none=True)
        run(x.clone().requires_grad_()).sum().backward()

    return forward if part == PARTS[0] else both


def table(results: dict[str, Any]) -> Table:
    """Milliseconds of each part, and what they are of the leanest loop."""
    heads = ["", *(head for part in PARTS for head in (f"{part}, ms", "lean loop x")), "difference"]
    found = Table(f"{results['steps']} Euler steps, {CHANNELS} channels, batch 1, float32, one thread", heads)
    cases = results["cases"]
    for name in cases[PARTS[0]]["median_ms"]:
        times = [(cases[part]["median_ms"][name], cases[part]["median_ms"][LEAN]) for part in PARTS]
        cells = [cell for mine, lean in times for cell in (milliseconds(mine), ratio(mine, lean))]
        found.add(name, *cells, f"{results['difference'][name]:.1e}")
    return found


if __name__ == "__main__":
    main()
