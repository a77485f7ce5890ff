"""Predict the next frame of bouncing digits: convolutions against NANODE blocks in the place of two out of three.

    python docs/examples/nanode/moving_digits.py --json video.json --figure video.png

Three networks of the same form train on the same videos in the same order. `convolutions` has groups of three convolutions; in `trig` the second and
the third make way for a block of three Euler steps whose weights are trigonometric of order three, in `constant` for one whose weights stand still.
The trigonometric blocks have seven kernels each where three steps can tell three apart: that is the paper's setting, and more than it needs.

Needs scikit-learn for the digits, and matplotlib for the figure.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean

import click
import torch
import torch.nn.functional as F
from bouncing import handwritten, videos
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from saved_bytes import saved_bytes
from torch import Tensor
from video_model import NextFrame, VideoConfig

from pararnn_nanode import PathWarning

RESTS = ("convolutions", "constant", "trig")
# How the blocks of the comparison of memory are integrated; the trained ones are the first.
WAYS = (("euler", "backprop"), ("euler", "checkpoint"), ("reversible_heun", "reversible"))


@dataclass(frozen=True, kw_only=True)
class Training:
    """Adam with one cycle of the learning rate, on windows of videos."""

    updates: int = 600
    batch: int = 32
    lr: float = 5e-3
    train_videos: int = 1000
    test_videos: int = 200
    frames: int = 12


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One network of one seed: loss of every update, mean squared error on other digits, and that of repeating the last frame."""

    rest: str
    seed: int
    parameters: int
    losses: list[float]
    test_error: float
    copy_error: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Bytes that one forward pass keeps, in one way to integrate with so many steps."""

    rest: str
    method: str
    gradient: str
    steps: int
    bytes: int


def network(config: VideoConfig, seed: int) -> NextFrame:
    """A new network."""
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        # Seven kernels, three steps: known, and said above.
        warnings.simplefilter("ignore", PathWarning)
        return NextFrame(config)


def windows(film: Tensor, context: int, batch: int, updates: int, seed: int) -> Iterator[Tensor]:
    """Batches `(batch, context + 1, height, width)` from random places of random videos."""
    generator = torch.Generator().manual_seed(seed)
    count, frames = film.shape[:2]
    for _ in range(updates):
        video = torch.randint(count, (batch, 1), generator=generator)
        first = torch.randint(frames - context, (batch, 1), generator=generator)
        yield film[video, first + torch.arange(context + 1)]


def train(config: VideoConfig, training: Training, seed: int, film: Tensor, test: Tensor, progress: Progress) -> tuple[Outcome, NextFrame]:
    """Train one network, and test it on digits that it has not seen; `seed` is that of first weights and of windows."""
    start = time.perf_counter()
    model = network(config, seed)
    optimizer = torch.optim.Adam(model.parameters(), training.lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, training.lr, total_steps=training.updates)
    task = progress.add_task(f"{config.rest}, seed {seed}", total=training.updates, loss=float("nan"))
    losses = []
    for batch in windows(film, config.context, training.batch, training.updates, seed):
        loss = F.mse_loss(model(batch[:, :-1]), batch[:, -1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        progress.update(task, advance=1, loss=losses[-1])
    errors = evaluate(model.eval(), test)
    outcome = Outcome(
        rest=config.rest,
        seed=seed,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        losses=losses,
        test_error=errors[0],
        copy_error=errors[1],
        seconds=time.perf_counter() - start,
    )
    return outcome, model


@torch.no_grad()
def evaluate(model: NextFrame, film: Tensor) -> tuple[float, float]:
    """Mean squared error over all windows of `film`, and the error of repeating the last frame seen."""
    context = model.config.context
    all_windows = film.unfold(1, context + 1, 1).movedim(-1, 2).flatten(0, 1)
    errors = [(F.mse_loss(model(part[:, :-1]), part[:, -1:], reduction="sum").item()) for part in all_windows.split(100)]
    return sum(errors) / all_windows[:, -1:].numel(), F.mse_loss(all_windows[:, -2], all_windows[:, -1]).item()


def memory(config: VideoConfig, frames: Tensor, steps: tuple[int, ...]) -> list[Kept]:
    """What the networks keep for the backward pass of one batch `frames` `(batch, context, height, width)`, with so many steps a block."""

    def kept(config: VideoConfig) -> Kept:
        model = network(config, 0)
        names = ("", "", 0) if config.rest == "convolutions" else (config.method, config.gradient, config.steps)
        return Kept(rest=config.rest, method=names[0], gradient=names[1], steps=names[2], bytes=saved_bytes(model, lambda: model(frames)))

    moving = replace(config, rest="trig")
    ways = [replace(moving, method=method, gradient=gradient, steps=count) for method, gradient in WAYS for count in steps]
    return [kept(one) for one in (replace(config, rest="convolutions"), *ways)]


def draw(outcomes: list[Outcome], kept: list[Kept], path: Path) -> None:
    """Training loss, one line a seed, and the bytes kept against the steps of a block."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for index, rest in enumerate(RESTS):
        for outcome in (outcome for outcome in outcomes if outcome.rest == rest):
            window = min(25, len(outcome.losses))
            smooth = torch.tensor(outcome.losses).unfold(0, window, 1).mean(-1)
            label = rest if outcome.seed == 0 else None
            left.semilogy(range(window, len(outcome.losses) + 1), smooth, color=f"C{index}", linewidth=1, label=label)
    left.axhline(outcomes[0].copy_error, color="0.6", linestyle=":", label="the last frame again")
    left.set(xlabel="update", ylabel="squared error, mean of 25 updates", title="next frame")
    for method, gradient in WAYS:
        line = [one for one in kept if (one.method, one.gradient) == (method, gradient)]
        right.plot([one.steps for one in line], [one.bytes / 2**20 for one in line], "o-", label=f"{method}, {gradient}")
    right.axhline(next(one.bytes for one in kept if one.rest == "convolutions") / 2**20, color="0.6", linestyle=":", label="convolutions")
    right.set(xlabel="steps of a block", ylabel="MiB", title="kept for the backward pass of one batch")
    right.set_ylim(0)
    for axes in (left, right):
        axes.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=100)


def report(outcomes: list[Outcome]) -> Table:
    """Means over the seeds: training loss of the last updates, error on new digits, its least and its most."""
    columns = ("groups of", "parameters", "training", "new digits", "least", "most", "seconds")
    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for rest in dict.fromkeys(outcome.rest for outcome in outcomes):
        same = [outcome for outcome in outcomes if outcome.rest == rest]
        errors = [outcome.test_error for outcome in same]
        numbers = (mean(mean(outcome.losses[-50:]) for outcome in same), mean(errors), min(errors), max(errors))
        seconds = mean(outcome.seconds for outcome in same)
        table.add_row(rest, f"{same[0].parameters:,}", *(f"{number:.5f}" for number in numbers), f"{seconds:.0f}")
    return table


@click.command(help=__doc__.partition("\n")[0])
@click.option("--updates", default=Training.updates, show_default=True, type=click.IntRange(1))
@click.option("--batch", default=Training.batch, show_default=True, type=click.IntRange(1))
@click.option("--lr", default=Training.lr, show_default=True, help="Highest learning rate of the cycle.")
@click.option("--videos", "count", default=Training.train_videos, show_default=True, type=click.IntRange(1), help="Videos to train on.")
@click.option("--channels", default=VideoConfig.channels, show_default=True, type=click.IntRange(1), help="Of the largest images.")
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(1), help="First weights and windows.")
@click.option(
    "--depth", "depths", multiple=True, default=(3, 10, 30), show_default=True, type=click.IntRange(1), help="Steps of a block, for memory."
)
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1))
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Where to write the results.")
@click.option("--figure", type=click.Path(dir_okay=False, path_type=Path), help="Where to draw loss and memory.")
def main(
    updates: int,
    batch: int,
    lr: float,
    count: int,
    channels: int,
    seeds: int,
    depths: tuple[int, ...],
    threads: int,
    json_path: Path | None,
    figure: Path | None,
) -> None:
    """Train the three networks, and measure what they keep."""
    torch.set_num_threads(threads)
    console = Console()
    training = Training(updates=updates, batch=batch, lr=lr, train_videos=count)
    config = VideoConfig(channels=channels)
    sprites, new_sprites = handwritten()
    film = videos(sprites, training.train_videos, frames=training.frames, seed=1)
    test = videos(new_sprites, training.test_videos, frames=training.frames, seed=2)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("loss {task.fields[loss]:.4f}"))
    with Progress(*columns, console=console) as progress:
        outcomes = [train(replace(config, rest=rest), training, seed, film, test, progress)[0] for rest in RESTS for seed in range(seeds)]
    kept = memory(config, film[:batch, : config.context], depths)
    console.print(report(outcomes), f"the last frame again: {outcomes[0].copy_error:.5f}")
    table = Table("groups of", "method", "gradient", "steps", "kept, MiB", box=SIMPLE_HEAD)
    for one in kept:
        table.add_row(one.rest, one.method, one.gradient, str(one.steps or ""), f"{one.bytes / 2**20:.1f}")
    console.print(table)
    if json_path:
        results = {"settings": asdict(training) | asdict(config), "models": [asdict(one) for one in outcomes], "kept": [asdict(one) for one in kept]}
        json_path.write_text(json.dumps(results, indent=1) + "\n")
    if figure:
        draw(outcomes, kept, figure)


if __name__ == "__main__":
    main()
