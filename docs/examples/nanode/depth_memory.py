"""What a block keeps for its backward pass, against its depth: every step, the square root of their number, or none of them.

    python docs/examples/nanode/depth_memory.py --figure memory.png

`backprop` keeps all that the steps computed. `checkpoint` keeps some states and computes the rest again, `reversible` keeps the last state and walks
back from it. Both cost another forward pass, and `reversible` needs a method that can be walked back: `reversible_heun` or `alf`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import click
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table
from saved_bytes import saved_bytes
from torch import Tensor

from pararnn_nanode import NANODE, DenseField, TrigPath

DEPTHS = (10, 30, 100, 300, 1000)
WAYS = (("euler", "backprop"), ("euler", "checkpoint"), ("reversible_heun", "backprop"), ("reversible_heun", "reversible"))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One depth in one way: bytes kept, and milliseconds of forward and backward pass."""

    method: str
    gradient: str
    depth: int
    kept: int
    milliseconds: float

    @property
    def way(self) -> str:
        """Method and gradient in words."""
        return f"{self.method}, {self.gradient}"


def block(depth: int, method: str, gradient: str, *, dim: int = 16) -> NANODE:
    """A block of `depth` steps; weights and biases are trigonometric in time, of order two."""
    return NANODE(DenseField(dim, TrigPath((dim, dim), 2), bias=TrigPath((dim,), 2)), steps=depth, method=method, gradient=gradient)


def measure(depth: int, method: str, gradient: str, *, batch: int = 64, repeats: int = 3) -> Row:
    """Bytes and time of one block with `batch` states."""
    torch.manual_seed(0)
    model = block(depth, method, gradient)
    x = torch.randn(batch, model.field.dim, requires_grad=True)
    kept = saved_bytes(model, lambda: model(x))
    return Row(method=method, gradient=gradient, depth=depth, kept=kept, milliseconds=median(seconds(model, x) * 1e3 for _ in range(repeats)))


def seconds(model: NANODE, x: Tensor) -> float:
    """Time of one forward and backward pass."""
    start = time.perf_counter()
    model(x).sum().backward()
    return time.perf_counter() - start


def draw(rows: Iterable[Row], path: Path) -> None:
    """Bytes against depth, one line a way."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.add_subplot()
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(row.way, []).append(row)
    for marker, (way, line) in zip("osv^", lines.items(), strict=False):
        axes.loglog([row.depth for row in line], [row.kept / 1024 for row in line], marker + "-", label=way)
    axes.set(xlabel="steps", ylabel="kept for the backward pass, KiB", title="16 channels, batch 64, float32")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


@click.command(help=__doc__.partition("\n")[0])
@click.option("--depth", "depths", multiple=True, default=DEPTHS, show_default=True, type=click.IntRange(1), help="Steps; may be repeated.")
@click.option("--batch", default=64, show_default=True, type=click.IntRange(1))
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1))
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Where to write the results.")
@click.option("--figure", type=click.Path(dir_okay=False, path_type=Path), help="Where to draw bytes against depth; needs matplotlib.")
def main(depths: tuple[int, ...], batch: int, threads: int, json_path: Path | None, figure: Path | None) -> None:
    """Measure every way at every depth."""
    torch.set_num_threads(threads)
    console = Console()
    cases = [(depth, *way) for way in WAYS for depth in depths]
    rows = [measure(*case, batch=batch) for case in track(cases, "measuring", console=console)]
    table = Table("method, gradient", *map(str, depths), "time", box=SIMPLE_HEAD, title="KiB kept after so many steps; ms of the longest")
    for way in dict.fromkeys(row.way for row in rows):
        line = [row for row in rows if row.way == way]
        table.add_row(way, *(f"{row.kept / 1024:,.1f}" for row in line), f"{line[-1].milliseconds:.0f}")
    console.print(table)
    if json_path:
        json_path.write_text(json.dumps({"batch": batch, "dim": 16, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    if figure:
        draw(rows, figure)


if __name__ == "__main__":
    main()
