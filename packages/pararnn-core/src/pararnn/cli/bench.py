"""`pararnn bench`: a cell solved in parallel against the walk: forward, forward and backward, and what is kept for the backward pass."""

from __future__ import annotations

import functools
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from pararnn.cli.plugins import titled_table
from pararnn.errors import ConfigError
from pararnn.examples import build_example
from pararnn.layers import ParaRNN
from pararnn.registry import installed
from pararnn.solver.config import NewtonConfig

SOLVERS = ("sequential", "auto")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cell at one length: medians in milliseconds, mebibytes kept for the backward pass, backend and plan of the parallel side."""

    cell: str
    batch: int
    length: int
    state: int
    walk_forward: float
    parallel_forward: float
    walk_both: float
    parallel_both: float
    walk_kept: float
    parallel_kept: float
    backend: str
    plan: str


@click.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--batch", default=4, show_default=True, type=click.IntRange(1), help="Sequences side by side.")
@click.option(
    "--length", "lengths", multiple=True, default=(256, 1024, 4096), show_default=True, type=click.IntRange(1), help="Steps; may be repeated."
)
@click.option("--repeats", default=5, show_default=True, type=click.IntRange(1), help="Timed runs, of which the median is shown.")
@click.option("--threads", default=None, type=click.IntRange(1), help="Threads for torch; as torch chooses if left out.")
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(["float32", "float64"]), help="Precision of cell and inputs.")
@click.option("--device", default="cpu", show_default=True, help="Where to run, such as cpu or cuda.")
@click.option("--backend", default="auto", show_default=True, help="Who solves in parallel, such as torch, native or triton.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), default=None, help="Also draw the ratios into this image file.")
def bench(
    names: tuple[str, ...],
    batch: int,
    lengths: tuple[int, ...],
    repeats: int,
    threads: int | None,
    dtype: str,
    device: str,
    backend: str,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Time the example of each cell NAME, solved in parallel and walked step by step, both with the same weights."""
    if threads is not None:
        torch.set_num_threads(threads)
    console = Console(stderr=True)
    rows = []
    with Progress(console=console, disable=as_json, transient=True) as progress:
        task = progress.add_task("timing", total=len(names) * len(lengths))
        for name in names:
            build = functools.partial(build_example, installed().cells[name])
            for length in sorted(lengths):
                progress.update(task, description=f"{name}, {length} steps")
                rows.append(_measure(name, build, batch, length, repeats, getattr(torch, dtype), device, backend))
                progress.advance(task)
    machine = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "dtype": dtype,
        "repeats": repeats,
    }
    if as_json:
        click.echo(json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        _show(rows, machine)
    if plot is not None:
        _draw(rows, plot)
        if not as_json:
            click.echo(f"plot: {plot}")


def _measure(name: str, build: Any, batch: int, length: int, repeats: int, dtype: torch.dtype, device: str, backend: str) -> Row:
    cell, x = build(batch, length, seed=0)
    cell, x = cell.to(device=device, dtype=dtype), x.to(device=device, dtype=dtype)
    models = [ParaRNN(cell, solver=solver, config=NewtonConfig(backend=backend)) for solver in SOLVERS]  # type: ignore[arg-type]
    output, results = models[1].solve(x)
    cotangent = torch.ones_like(output)

    def forward(model: ParaRNN) -> None:
        with torch.no_grad():
            model(x)

    def both(model: ParaRNN) -> None:
        model(x).backward(cotangent)

    (walk_forward, parallel_forward), (walk_both, parallel_both) = (_medians(run, models, repeats, device) for run in (forward, both))
    walk_kept, parallel_kept = (_kept(model, x) for model in models)
    return Row(
        cell=name,
        batch=batch,
        length=length,
        state=results[0].states.shape[-1],
        walk_forward=walk_forward,
        parallel_forward=parallel_forward,
        walk_both=walk_both,
        parallel_both=parallel_both,
        walk_kept=walk_kept,
        parallel_kept=parallel_kept,
        backend=results[0].backend,
        plan=results[0].plan.explain(),
    )


def _medians(run: Callable[[ParaRNN], None], models: list[ParaRNN], repeats: int, device: str) -> list[float]:
    """Median milliseconds of each model, run in turn so that a drift of the machine hits all alike; the first round is not counted."""
    times: list[list[float]] = [[] for _ in models]
    for turn in range(repeats + 1):
        for model, record in zip(models, times, strict=True):
            _wait(device)
            start = time.perf_counter()
            run(model)
            _wait(device)
            if turn:
                record.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(record) for record in times]


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _kept(model: ParaRNN, x: Tensor) -> float:
    """Mebibytes of distinct storages that autograd keeps for the backward pass."""
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        # Tensors inside a torch.func transform have no storage of their own, and are gone when the backward pass runs.
        if not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = model(x)
    del output
    return sum(storages.values()) / 2**20


def _show(rows: list[Row], machine: dict[str, Any]) -> None:
    facts = ", ".join(f"{key} {value}" for key, value in machine.items())
    table = titled_table(
        f"Walk against parallel solve, medians ({facts})",
        "cell",
        "batch, steps, state",
        "backend",
        "forward, ms",
        "forward + backward, ms",
        "kept, MiB",
    )
    for row in rows:
        table.add_row(
            row.cell,
            f"{row.batch}, {row.length}, {row.state}",
            row.backend,
            f"{row.walk_forward:.1f} / {row.parallel_forward:.1f} = {row.walk_forward / row.parallel_forward:.1f}x",
            f"{row.walk_both:.1f} / {row.parallel_both:.1f} = {row.walk_both / row.parallel_both:.1f}x",
            f"{row.walk_kept:.1f} / {row.parallel_kept:.1f}",
        )
    Console().print(table)


def _draw(rows: list[Row], target: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"--plot needs matplotlib ({error}); pip install 'pararnn-core[plot]'") from error
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for index, name in enumerate(dict.fromkeys(row.cell for row in rows)):
        mine = [row for row in rows if row.cell == name]
        lengths = [row.length for row in mine]
        axes.plot(lengths, [row.walk_forward / row.parallel_forward for row in mine], "o-", color=f"C{index}", label=f"{name}, forward")
        axes.plot(lengths, [row.walk_both / row.parallel_both for row in mine], "s--", color=f"C{index}", label=f"{name}, forward + backward")
    axes.axhline(1, color="0.5", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="steps", ylabel="time of the walk / time of the parallel solve", title=f"batch {rows[0].batch}")
    axes.legend()
    figure.savefig(target, dpi=150)
