"""What the recurrent gain does to the exponent, and to the signals of COLA and TBPTT-1: the table and the figure of the documentation.

    python docs/examples/cola/criticality.py --figure criticality.png

64 units, sequences of 50 steps of Adding and Lorenz with a loss at every step, weights as they are drawn; a COLA that has seen its 16 sequences ten
times before. Gaussian weights at several gains, and weights near the identity, as the source assumes them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev

import click
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track

from pararnn_cola import COLA, TBPTT1, CriticalityWarning, Network, gain_curve, lyapunov_exponent, measure_alignment, near_critical, operator_norm
from pararnn_cola import plot_gain_curve as plot
from pararnn_cola.tasks import Task, make

UNITS, LENGTH, SAMPLES, WARM_UP = 64, 50, 16, 10
GAINS: tuple[float | str, ...] = (0.5, 1.5, "two-point", "critical", 5.0, "identity-like, two-point")
HEAD = ("task", "gain", "exponent", "d", "COLA", "best closure", "signs", "R^2", "median factor", "at cap", "W: d", "W: COLA")
CURVE = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6)


def network(task: Task, seed: int, kind: str = "gauss") -> Network:
    """A network whose recurrent weights are as they are drawn, orthogonal, or near the identity."""
    made = Network.rnn(task.input_size, UNITS, task.output_size, readout_scale=0.3, seed=seed)
    weight = made.recurrent[0].get_parameter("weight_hh")
    with torch.no_grad():
        if kind == "identity":
            weight.copy_(torch.eye(UNITS) + 0.1 * weight)
        elif kind == "orthogonal":
            weight.copy_(torch.linalg.qr(weight)[0])
    return made


def drive(name: str, seed: int) -> torch.Tensor:
    """Inputs to measure exponents under, `(4, 250, input)`."""
    return make(name, length=250).batch(4, torch.Generator().manual_seed(100 + seed)).inputs


def measured(name: str, gain: float | str, seed: int) -> list[float]:
    """A row of the table for one seed, from the gain on."""
    task = make(name, length=LENGTH)
    made = network(task, seed, "identity" if isinstance(gain, str) and gain.startswith("identity") else "gauss")
    inputs = drive(name, seed)
    if isinstance(gain, float):
        with torch.no_grad():
            made.recurrent[0].get_parameter("weight_hh").mul_(gain / operator_norm(made))
    elif gain == "critical":
        near_critical(made, inputs, mode="secant", target=0.0)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CriticalityWarning)
            near_critical(made, inputs)
    batch = task.batch(SAMPLES, torch.Generator().manual_seed(200 + seed))
    report, plain = measure_alignment(COLA(made), batch, warmup=WARM_UP), measure_alignment(TBPTT1(made), batch)
    layer = report.layers[0]
    weights = [each.gradients["layers.0.weight_hh"].cosine for each in (plain, report)]
    found = [layer.instantaneous, layer.signal, layer.closure, layer.sign, layer.persistence, layer.gain, layer.at_cap, *weights]
    exponent = lyapunov_exponent(made, inputs).exponent
    return [operator_norm(made), exponent, *(float("nan") if value is None else value for value in found)]


def rows(tasks: Sequence[str], seeds: int, told: Callable[[Sequence[tuple[str, float | str]]], Sequence[tuple[str, float | str]]]) -> list[list[str]]:
    """The table, means over seeds, with the standard deviation of the two cosines; `told` shows progress."""
    table = [[*HEAD], ["---"] * len(HEAD)]
    for name, gain in told([(name, gain) for name in tasks for gain in GAINS]):
        columns = list(zip(*(measured(name, gain, seed) for seed in range(seeds)), strict=True))
        means = [mean(column) for column in columns]
        spread = [stdev(column) if seeds > 1 else 0.0 for column in columns]
        cells = [f"{means[0]:.2f}" if isinstance(gain, float) else f"{gain}, {means[0]:.2f}", f"{means[1]:+.2f}"]
        cells += [f"{means[index]:.3f} ± {spread[index]:.3f}" for index in (2, 3)]
        cells += [f"{value:.2f}" for value in means[4:7]] + [f"{means[7]:.1f}", f"{means[8]:.2f}"]
        cells += [f"{means[index]:.2f} ± {spread[index]:.2f}" for index in (9, 10)]
        table.append([name, *cells])
    return table


def draw(path: Path) -> None:
    """The exponent against the gain, for three kinds of weights and both tasks."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for on, name in zip(panels, ("adding", "lorenz"), strict=True):
        for kind in ("gauss", "orthogonal", "identity"):
            plot(gain_curve(network(make(name, length=LENGTH), 0, kind), drive(name, 0), CURVE), axes=on)
            on.lines[-2].set_label(kind)
        on.set(title=name, xticks=CURVE, xticklabels=[f"{gain:g}" for gain in CURVE])
        on.minorticks_off()
    panels[1].set_ylabel("")
    handles = [container.lines[0] for container in panels[0].containers]
    panels[0].legend(handles, ("Gaussian", "orthogonal", "identity-like"), frameon=False, fontsize="small", loc="lower left")
    figure.savefig(path, dpi=80)


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--seeds", default=3, show_default=True)
@click.option("--tasks", default="adding,lorenz", show_default=True)
@click.option("--figure", type=click.Path(path_type=Path), help="Draw exponents against gains here.")
def main(seeds: int, tasks: str, figure: Path | None) -> None:
    """Print the table."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    table = rows(tasks.split(","), seeds, lambda cases: track(cases, console=Console(stderr=True), transient=True))
    for row in table:
        console.print("| " + " | ".join(row) + " |")
    if figure is not None:
        draw(figure)


if __name__ == "__main__":
    main()
