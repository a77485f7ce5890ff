"""A neural ODE with moving weights on a GPU: time and peak memory of every way to its gradient, beside torchdiffeq.

    python docs/benchmarks/gpu_nanode.py --json docs/benchmarks/results/gpu_nanode.json

`tanh(W(t) x)` with a trigonometric path of order 2, 1024 channels, batch 1024, 100 steps, float32: forward and backward to the state and the
coefficients. Aims at a `reversible` that takes no more than 1.6 times as long as `backprop` of the same method. torchdiffeq (where it is installed)
integrates the same field in the same steps by midpoint and the 3/8 rule, which it calls rk4, with its gradient by backpropagation or by its adjoint.
Contestants take turns; times are medians of all turns, peaks are what is allocated at most beyond what was there before.
"""

from __future__ import annotations

import gc
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
from machine import MEBIBYTE, environment, machine
from report import Table, milliseconds, progress, publish, ratio
from rich.console import Console
from torch import Tensor

from pararnn.errors import ParaRNNError
from pararnn_nanode import NANODE, DenseField, TrigPath

Run = Callable[[Tensor], Tensor]
OURS = [
    ("reversible_heun", "backprop"),
    ("reversible_heun", "checkpoint"),
    ("reversible_heun", "reversible"),
    ("alf", "backprop"),
    ("alf", "reversible"),
    ("midpoint", "backprop"),
    ("midpoint", "checkpoint"),
    ("midpoint", "adjoint"),
    ("rk4_38", "backprop"),
    ("rk4_38", "checkpoint"),
    ("rk4_38", "adjoint"),
]
PEERS = {"midpoint": "midpoint", "rk4_38": "rk4"}
"""Names of our methods, and of the same ones in torchdiffeq."""
ORDER = 2


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--channels", default=1024, show_default=True)
@click.option("--batch", default=1024, show_default=True)
@click.option("--steps", default=100, show_default=True)
@click.option("--rounds", default=7, show_default=True, help="Turns of each contestant.")
@click.option("--device", default="cuda", show_default=True)
@click.option("--tf32", is_flag=True, help="Let matrix products round to TF32.")
@click.option("--quick", is_flag=True, help="Small shapes, two rounds: shows that it runs, measures nothing.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write raw numbers here and tables beside it (.md).")
def main(channels: int, batch: int, steps: int, rounds: int, device: str, tf32: bool, quick: bool, json_path: Path | None) -> None:
    """Measure every contestant in turns, and publish."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    console = Console()
    channels, batch, steps, rounds = (16, 8, 10, 2) if quick else (channels, batch, steps, rounds)
    shape = f"{channels} channels, batch {batch}, {steps} steps, {'tf32' if tf32 else 'float32'}, {_name_of(device)}"
    results: dict[str, Any] = {"machine": machine(), "device": _name_of(device), "shape": shape, "quick": quick, "rounds": rounds, "failed": {}}
    torch.manual_seed(0)
    field = DenseField(channels, TrigPath((channels, channels), ORDER, device=device))
    x = torch.randn(batch, channels, device=device, requires_grad=True)
    runs = contestants(field, steps)
    raw: dict[str, list[float]] = {name: [] for name in runs}
    peaks: dict[str, float] = {}
    gradients: dict[str, Tensor] = {}
    with progress(console) as bar:
        task = bar.add_task("", total=(rounds + 1) * len(runs))
        for turn in range(rounds + 1):
            for name, run in runs.items():
                bar.update(task, advance=1, description=name, refresh=True)
                if name in results["failed"]:
                    continue
                try:
                    spent, peaks[name] = measure(run, field, x)
                except (ParaRNNError, torch.OutOfMemoryError) as failure:
                    results["failed"][name] = str(failure).partition("\n")[0]
                    continue
                # The first turn finds kernels and fills the allocator.
                raw[name] += [spent] if turn else []
                gradients[name] = field.path.coefficients.grad.detach().clone() if not turn else gradients[name]
    results |= {"ms": raw, "median_ms": {name: median(values) for name, values in raw.items() if values}, "peak_mib": peaks}
    results["difference"] = {name: _apart(gradients[name], gradients.get(_exact(name))) for name in gradients}
    results["environment"] = environment("pararnn-core", "pararnn-nanode", "torchdiffeq")
    publish([table(results)], results, console, json_path)


def contestants(field: DenseField, steps: int) -> dict[str, Run]:
    """What each does with a state; all use the coefficients of one field."""
    runs: dict[str, Run] = {f"{method}, {gradient}": NANODE(field, steps=steps, method=method, gradient=gradient) for method, gradient in OURS}
    if importlib.util.find_spec("torchdiffeq") is None:
        return runs
    import torchdiffeq

    ends = torch.tensor([0.0, 1.0], device=field.path.coefficients.device)
    # The function of a torchdiffeq user builds the weights of its time when it is called.
    for method, name in PEERS.items():
        for solve in (torchdiffeq.odeint, torchdiffeq.odeint_adjoint):
            runs[f"{method}, torchdiffeq {solve.__name__}"] = lambda x, solve=solve, name=name: solve(
                field, x, ends, method=name, options={"step_size": 1 / steps}
            )[-1]
    return runs


def measure(run: Run, field: DenseField, x: Tensor) -> tuple[float, float]:
    """Milliseconds of one forward and backward pass, and the MiB that it needs at most; leaves the gradients where they belong."""
    field.zero_grad(set_to_none=True)
    x.grad = None
    gc.collect()
    settle = torch.cuda.synchronize if x.is_cuda else _nothing
    settle()
    before = torch.cuda.memory_allocated() if x.is_cuda else 0
    if x.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    run(x).square().mean().backward()
    settle()
    spent = time.perf_counter() - begin
    peak = torch.cuda.max_memory_allocated() if x.is_cuda else 0
    return spent * 1e3, (peak - before) / MEBIBYTE


def table(results: dict[str, Any]) -> Table:
    """Time and memory of each, and what they are of backprop by the same method."""
    found = Table(f"forward + backward, {results['shape']}", ["method, gradient", "ms", "backprop x", "peak, MiB", "backprop x", "gradient apart"])
    times, peaks = results["median_ms"], results["peak_mib"]
    for name in results["ms"]:
        if name in results["failed"]:
            found.add(name, results["failed"][name], *["-"] * 4)
            continue
        base = _exact(name)
        cells = (milliseconds(times[name]), ratio(times[name], times.get(base)), f"{peaks[name]:.0f}", ratio(peaks[name], peaks.get(base)))
        apart = results["difference"][name]
        found.add(name, *cells, "-" if apart is None else f"{apart:.1e}")
    return found


def _exact(name: str) -> str:
    return f"{name.partition(',')[0]}, backprop"


def _apart(found: Tensor, expected: Tensor | None) -> float | None:
    return None if expected is None else float((found - expected).norm() / expected.norm())


def _name_of(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else device


def _nothing() -> None:
    """A CPU has nothing to wait for."""


if __name__ == "__main__":
    main()
