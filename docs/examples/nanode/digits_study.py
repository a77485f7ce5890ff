"""Does it help a residual network that its weights move with time? Handwritten digits, six seeds, twenty kinds of weights.

The 64 pixels of scikit-learn's images are projected to 12 features by one random orthonormal matrix, the same for all; a block of ten Euler steps of
`dx/dt = tanh(W(t) x + b(t))` and a linear classifier follow. A seed stands for a split of the images and for first weights. The models of all seeds
train side by side in one `torch.vmap`.

    python docs/examples/nanode/digits_study.py --json digits.json --figure accuracy.png --weights weights.png

450 test images: one accuracy has a standard error of about 1.8 points, so only differences of well over one point, over all seeds, mean anything.

Needs scikit-learn for the images, and matplotlib for the figures.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, stdev

import click
import torch
import torch.nn.functional as F
from digits_models import BY_NAME, CON, MODELS, Block, Model
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from torch import Tensor, nn

CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Training:
    """How every model of a study is trained: Adam, one cycle of the learning rate."""

    epochs: int = 40
    batch: int = 256
    lr: float = 2e-2


@dataclass(frozen=True, kw_only=True)
class Data:
    """Features and digits of every seed: `(seeds, images, dim)` and `(seeds, images)`."""

    x: Tensor
    labels: Tensor
    x_test: Tensor
    labels_test: Tensor


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One model: test accuracies in per cent, final training losses and points of accuracy above Con-ResNet, one a seed."""

    name: str
    family: str
    matrices: int | None
    parameters: int
    accuracies: list[float]
    losses: list[float]
    seconds: float
    gains: list[float] | None = None


def digits(seeds: range, dim: int) -> Data:
    """The images, split anew for each seed: 1347 train, 450 test, in the same proportions of digits."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    # A new projection for each seed would drown the differences between models: it alone moves the accuracy by about five points.
    projection = torch.linalg.qr(torch.randn(64, dim, generator=torch.Generator().manual_seed(1000))).Q
    parts: list[tuple[Tensor, ...]] = []
    for seed in seeds:
        train, test, train_labels, test_labels = train_test_split(pixels / 16, labels, test_size=0.25, stratify=labels, random_state=seed)
        centre, scale = train.mean(0), train.std(0) + 0.1
        x, x_test = (torch.tensor((part - centre) / scale, dtype=torch.float32) @ projection for part in (train, test))
        parts.append((x, torch.tensor(train_labels), x_test, torch.tensor(test_labels)))
    x, labels, x_test, labels_test = map(torch.stack, zip(*parts, strict=True))
    return Data(x=x, labels=labels, x_test=x_test, labels_test=labels_test)


def classifier(model: Model, block: Block, seed: int) -> nn.Sequential:
    """Block and linear classifier with the first weights of `seed`; the classifier is drawn first, so that all models share it."""
    torch.manual_seed(seed)
    head = nn.Linear(block.dim, CLASSES)
    return nn.Sequential(head) if model.build is None else nn.Sequential(model.build(block), head)


def train(model: Model, data: Data, block: Block, training: Training, progress: Progress) -> tuple[Outcome, nn.Sequential]:
    """Train one model with every seed at once; the outcome, and the model of the first seed."""
    start = time.perf_counter()
    seeds, images = data.labels.shape
    models = [classifier(model, block, seed) for seed in range(seeds)]
    weights, buffers = torch.func.stack_module_state(models)

    def scores(weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(models[0], (weights, buffers), (x,))

    def losses(x: Tensor, labels: Tensor) -> Tensor:
        found = torch.vmap(scores)(weights, buffers, x)
        return F.cross_entropy(found.flatten(0, 1), labels.flatten(), reduction="none").unflatten(0, labels.shape).mean(1)

    batches = -(-images // training.batch)
    # Adam works number by number, so that one optimiser of stacked weights is as good as one for each seed.
    optimizer = torch.optim.Adam(weights.values(), training.lr, foreach=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, training.lr, total_steps=training.epochs * batches)
    task = progress.add_task(model.name, total=training.epochs)
    shuffle = torch.Generator().manual_seed(0)
    for _ in range(training.epochs):
        for chosen in torch.randperm(images, generator=shuffle).split(training.batch):
            optimizer.zero_grad()
            losses(data.x[:, chosen], data.labels[:, chosen]).sum().backward()
            optimizer.step()
            schedule.step()
        progress.advance(task)
    with torch.no_grad():
        hits = torch.vmap(scores)(weights, buffers, data.x_test).argmax(-1) == data.labels_test
        final = losses(data.x, data.labels)
        models[0].load_state_dict({name: tensor[0] for name, tensor in (weights | buffers).items()})
    outcome = Outcome(
        name=model.name,
        family=model.family,
        matrices=model.matrices,
        parameters=sum(parameter.numel() for parameter in models[0][:-1].parameters()),
        accuracies=(100 * hits.double().mean(1)).tolist(),
        losses=final.tolist(),
        seconds=time.perf_counter() - start,
    )
    return outcome, models[0]


def study(
    names: tuple[str, ...], *, seeds: int, block: Block, training: Training, progress: Progress
) -> tuple[list[Outcome], dict[str, nn.Sequential]]:
    """Train the named models; their outcomes, and the model of the first seed by name."""
    data = digits(range(seeds), block.dim)
    outcomes, models = [], {}
    for name in names:
        outcome, models[name] = train(BY_NAME[name], data, block, training, progress)
        outcomes.append(outcome)
    return outcomes if CON.name not in names else [compared(outcome, outcomes[names.index(CON.name)]) for outcome in outcomes], models


def compared(outcome: Outcome, reference: Outcome) -> Outcome:
    """`outcome` with its points above `reference`, which has the same seeds."""
    return replace(outcome, gains=[ours - theirs for ours, theirs in zip(outcome.accuracies, reference.accuracies, strict=True)])


def spread(values: list[float] | None, form: str) -> str:
    """Mean and standard deviation over the seeds."""
    if values is None:
        return ""
    return format(mean(values), form) + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def report(outcomes: list[Outcome]) -> Table:
    """The outcomes as a table."""
    columns = ("model", "matrices", "accuracy %", "above Con", "loss", "parameters")
    table = Table(*(Column(name, no_wrap=True) for name in columns), box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for outcome in outcomes:
        matrices = "" if outcome.matrices is None else str(outcome.matrices)
        scores = (spread(outcome.accuracies, ".2f"), spread(outcome.gains, "+.2f"), f"{mean(outcome.losses):.3f}")
        table.add_row(outcome.name, matrices, *scores, f"{outcome.parameters:,}")
    return table


@click.command(help=__doc__.partition("\n")[0])
@click.argument("names", nargs=-1, type=click.Choice(list(BY_NAME)), metavar="[MODEL]...")
@click.option("--seeds", default=6, show_default=True, type=click.IntRange(1), help="Splits and first weights.")
@click.option("--epochs", default=40, show_default=True, type=click.IntRange(1))
@click.option("--batch", default=256, show_default=True, type=click.IntRange(1))
@click.option("--lr", default=2e-2, show_default=True, help="Highest learning rate of the cycle.")
@click.option("--span", default=1.0, show_default=True, help="End of the time that the ten steps cover.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1))
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Where to write the results.")
@click.option("--figure", type=click.Path(dir_okay=False, path_type=Path), help="Where to draw accuracy against the number of matrices.")
@click.option("--weights", type=click.Path(dir_okay=False, path_type=Path), help="Where to draw trained weights over time.")
def main(
    names: tuple[str, ...],
    seeds: int,
    epochs: int,
    batch: int,
    lr: float,
    span: float,
    threads: int,
    json_path: Path | None,
    figure: Path | None,
    weights: Path | None,
) -> None:
    """Train the models named, or all, and show what they reach."""
    torch.set_num_threads(threads)
    console = Console()
    block = replace(Block(), span=(0.0, span))
    training = Training(epochs=epochs, batch=batch, lr=lr)
    names = names or tuple(model.name for model in MODELS)
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console) as progress:
        outcomes, models = study(names, seeds=seeds, block=block, training=training, progress=progress)
    console.print(report(outcomes))
    if json_path:
        settings = {"seeds": seeds, **asdict(block), **asdict(training)}
        json_path.write_text(json.dumps({"settings": settings, "models": [asdict(outcome) for outcome in outcomes]}, indent=1) + "\n")
    if figure or weights:
        import digits_figures

        if figure:
            digits_figures.accuracy([outcome for outcome in outcomes if outcome.gains], figure)
        if weights:
            digits_figures.weights(models, weights)


if __name__ == "__main__":
    main()
