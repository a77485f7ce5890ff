"""The two figures of the digits study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from matplotlib.figure import Figure
from torch import nn

from pararnn_nanode import ResidualStack, plot_weights

SHOWN = ("Bucket 5", "Uncon-ResNet", "Trig 2", "Legendre 4")


def accuracy(points: Sequence[Any], path: Path) -> None:
    """Points above Con-ResNet against the number of matrices: one line a family of weights, with the standard error over the seeds.

    Args:
        points: what has `family`, `matrices` and `gains`, points above Con-ResNet seed by seed.
    """
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    families: dict[str, list[Any]] = {}
    for point in points:
        if point.matrices:
            families.setdefault(point.family, []).append(point)
    for index, (family, line) in enumerate(families.items()):
        # Families share numbers of matrices: moved a little to the side, their bars can be told apart.
        aside = 0.07 * (index - (len(families) - 1) / 2)
        errors = [stdev(point.gains) / len(point.gains) ** 0.5 if len(point.gains) > 1 else 0.0 for point in line]
        where = [point.matrices + aside for point in line]
        axes.errorbar(where, [mean(point.gains) for point in line], errors, marker="o", markersize=4, capsize=2, linewidth=1, label=family)
    axes.axhline(0, color="0.7", linewidth=1, zorder=0)
    axes.set(
        xlabel="matrices that the block learns",
        ylabel="points of accuracy above Con-ResNet",
        title=f"mean and standard error over {len(points[0].gains)} seeds",
    )
    axes.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=120)


def weights(models: Mapping[str, nn.Sequential], path: Path) -> None:
    """Some entries of trained weights over time, for those of `SHOWN` that were trained."""
    shown = [name for name in SHOWN if name in models]
    figure = Figure(figsize=(8, 2.4 * -(-len(shown) // 2)), layout="constrained")
    axes = figure.subplots(-(-len(shown) // 2), 2, sharex=True, sharey=True, squeeze=False).flat
    for name, on in zip(shown, axes, strict=False):
        block = models[name][0]
        block = block.to_nanode() if isinstance(block, ResidualStack) else block
        plot_weights(block.field.path, entries=6, axes=on, legend=False)
        on.set(title=name, xlabel="t")
    figure.savefig(path, dpi=90)
