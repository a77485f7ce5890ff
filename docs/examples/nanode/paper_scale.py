"""CIFAR-100 and Moving MNIST at the scale of the paper, for whoever has the data and a GPU.

    python docs/examples/nanode/paper_scale.py cifar100 --data cifar-100-python --device cuda --set path=constant
    python docs/examples/nanode/paper_scale.py moving-mnist --data mnist_test_seq.npy --device cuda
    python docs/examples/nanode/paper_scale.py cifar100 --small

From the paper (Davis et al. 2020, arXiv 2005.01906): successive bottleneck residual blocks with `dt = 1/10` for images, and for videos the network of
Denton and Fergus (2018), in which a block with `dt = 0.33`, trigonometric of order three, stands for two of every three convolutions. Its optimiser,
learning rates, epochs, widths and tables were not available to us: those here are our choice or the defaults of Denton and Fergus's public code, and
nobody has compared what they reach with the paper.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import click
import torch
import torch.nn.functional as F
from image_model import Classifier, ImageConfig
from paper_data import LOADERS, Split, small_images, small_videos
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from saved_bytes import saved_bytes
from svg_model import SVG, SVGConfig
from torch import Tensor, nn
from video_model import VideoConfig

from pararnn_nanode import PathWarning


@dataclass(frozen=True, kw_only=True)
class Training:
    """Adam with one cycle of the learning rate."""

    epochs: int
    batch: int
    lr: float
    weight_decay: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A network and how to train it.

    Attributes:
        config: its sizes; `build` makes it of them.
        loss: of one batch, to be made small; `score`: of the test, to be shown.
        small: configuration and data that a laptop trains in seconds, to see whether everything works.
    """

    config: Any
    training: Training
    build: Callable[[Any], nn.Module]
    loss: Callable[..., Tensor]
    score: Callable[..., Tensor]
    small_config: Any
    small_data: Callable[[], Split]


def misses(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of the classes."""
    return F.cross_entropy(model(images), labels)


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Share of the images that are classified rightly."""
    return (model(images).argmax(-1) == labels).double().mean()


def error(model: SVG, film: Tensor) -> Tensor:
    """Mean squared error of every next frame."""
    return model(film)[0].double()


EXPERIMENTS = {
    "cifar100": Experiment(
        config=ImageConfig(),
        training=Training(epochs=100, batch=128, lr=1e-3, weight_decay=1e-4),
        build=Classifier,
        loss=misses,
        score=accuracy,
        small_config=ImageConfig(classes=4, widths=(16, 32)),
        small_data=small_images,
    ),
    "moving-mnist": Experiment(
        config=SVGConfig(),
        training=Training(epochs=300, batch=100, lr=2e-3),
        build=SVG,
        loss=SVG.loss,
        score=error,
        small_config=SVGConfig(images=VideoConfig(context=1, channels=4, poolings=2), vector=16, z=3, recurrent=16, side=32, past=3),
        small_data=small_videos,
    ),
}


def changed(config: Any, changes: dict[str, str]) -> Any:
    """`config` with some fields set from words; those of a nested configuration are found by their own names.

    Raises:
        click.BadParameter: no field has that name, or the field cannot have that value.
    """
    for name, word in changes.items():
        known = {field.name: getattr(config, field.name) for field in fields(config)}
        if name in known:
            kind = type(known[name])
            try:
                config = replace(config, **{name: tuple(map(int, word.split(","))) if kind is tuple else kind(word)})
            except ValueError as error:
                raise click.BadParameter(f"{name}={word}: {error}") from error
        elif "images" in known:
            config = replace(config, images=changed(known["images"], {name: word}))
        else:
            raise click.BadParameter(f"no setting is called {name!r}; those here are {', '.join(known)}")
    return config


def build(experiment: Experiment, config: Any) -> nn.Module:
    """The network."""
    with warnings.catch_warnings():
        # Order three has seven columns, and three steps read three times: the paper's setting, known.
        warnings.simplefilter("ignore", PathWarning)
        return experiment.build(config)


def run(experiment: Experiment, config: Any, training: Training, data: Split, device: str, progress: Progress) -> dict[str, Any]:
    """Train and test; what came out."""
    torch.manual_seed(0)
    model = build(experiment, config).to(device)
    kept = saved_bytes(model, lambda: experiment.loss(model, *(part[: training.batch].to(device) for part in data.train)))
    optimizer = torch.optim.AdamW(model.parameters(), training.lr, weight_decay=training.weight_decay)
    count = len(data.train[0])
    batches = -(-count // training.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, training.lr, total_steps=training.epochs * batches)
    task = progress.add_task("training", total=training.epochs * batches, loss=float("nan"))
    losses: list[float] = []
    for _ in range(training.epochs):
        model.train()
        total = 0.0
        for chosen in torch.randperm(count).split(training.batch):
            loss = experiment.loss(model, *(part[chosen].to(device) for part in data.train))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(chosen)
            progress.update(task, advance=1, loss=loss.item())
        losses.append(total / count)
    with torch.no_grad():
        model.eval()
        parts = list(zip(*(part.split(training.batch) for part in data.test), strict=True))
        scores = [experiment.score(model, *(part.to(device) for part in batch)) * len(batch[0]) for batch in parts]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    score = (sum(scores) / len(data.test[0])).item()
    return {"config": asdict(config), "training": asdict(training), "parameters": parameters, "kept_bytes": kept, "losses": losses, "score": score}


@click.command(help=__doc__.partition("\n")[0])
@click.argument("name", type=click.Choice(list(EXPERIMENTS)))
@click.option("--data", type=click.Path(path_type=Path), help="Where the data lies.")
@click.option("--small", is_flag=True, help="A small network on generated data.")
@click.option("--epochs", type=click.IntRange(1))
@click.option("--batch", type=click.IntRange(1))
@click.option("--lr", type=float)
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Any setting of the network, such as gradient=checkpoint.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Where to write the results.")
def main(
    name: str,
    data: Path | None,
    small: bool,
    epochs: int | None,
    batch: int | None,
    lr: float | None,
    changes: tuple[str, ...],
    device: str,
    json_path: Path | None,
) -> None:
    """Train one experiment."""
    experiment = EXPERIMENTS[name]
    config = changed(experiment.small_config if small else experiment.config, dict(change.split("=", 1) for change in changes))
    given = {key: value for key, value in (("epochs", epochs), ("batch", batch), ("lr", lr)) if value is not None}
    training = replace(experiment.training, **({"epochs": 3, "batch": 8, "lr": 1e-2} if small else {}) | given)
    split = experiment.small_data() if small else LOADERS[name](data)
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("loss {task.fields[loss]:.4f}"))
    with Progress(*columns, console=console) as progress:
        results = run(experiment, config, training, split, device, progress)
    meaning = " ".join((experiment.score.__doc__ or "").split())
    size = f"{results['parameters']:,} parameters, {results['kept_bytes'] / 2**20:.1f} MiB kept for a batch."
    console.print(f"{results['score']:.5f}: {meaning}", size, sep="\n")
    if json_path:
        json_path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
