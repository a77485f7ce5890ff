"""Handwritten digits, read pixel by pixel: S4D on the 64-step sequences of scikit-learn's 8 x 8 images.

A sequence is one image, row after row, one number a step; the class is the digit. 1437 images train, 360 test, in the same proportions of digits.
The state spaces start with time steps of .01 to .5: a memory of 2 to 100 samples, which 64 steps can tell apart (the usual .001 to .1 is made for
sequences of thousands).

    python docs/examples/digits.py --seeds 0 1 2 --json digits.json --plot digits.png

Needs scikit-learn for the images, and matplotlib for the plot.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor

from pararnn_s4 import S4Model, param_groups


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One training: accuracies, loss of each epoch, CPU time in seconds."""

    seed: int
    test_accuracy: float
    train_accuracy: float
    losses: list[float]
    cpu_seconds: float
    parameters: int


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images as sequences `(images, 64, 1)` and their digits, for training and for the test."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    train, test, train_labels, test_labels = train_test_split(images, labels, test_size=360, stratify=labels, random_state=0)
    mean, deviation = train.mean(), train.std()
    sequences = [torch.tensor((part - mean) / deviation, dtype=torch.float32).unsqueeze(-1) for part in (train, test)]
    return sequences[0], torch.tensor(train_labels), sequences[1], torch.tensor(test_labels)


def train(options: argparse.Namespace, seed: int, progress: Progress) -> Outcome:
    """Train one model and test it."""
    x, labels, x_test, labels_test = digits()
    torch.manual_seed(seed)
    start = time.process_time()
    model = S4Model(1, 10, options.d_model, options.n_layers, layer=options.layer, dropout=options.dropout, dt_min=0.01, dt_max=0.5)
    optimizer = torch.optim.AdamW(param_groups(model, lr=options.lr, ssm_lr=options.ssm_lr), lr=options.lr, weight_decay=0.01, fused=True)
    steps = -(-len(x) // options.batch)
    rates = [group["lr"] for group in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, epochs=options.epochs, steps_per_epoch=steps)
    losses = []
    task = progress.add_task(f"seed {seed}", total=options.epochs * steps, loss=float("nan"))
    for _ in range(options.epochs):
        model.train()
        total = 0.0
        for chosen in torch.randperm(len(x)).split(options.batch):
            loss = F.cross_entropy(model(x[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(chosen)
            progress.advance(task)
        losses.append(total / len(x))
        progress.update(task, loss=losses[-1])
    used = time.process_time() - start
    return Outcome(
        seed=seed,
        test_accuracy=accuracy(model, x_test, labels_test),
        train_accuracy=accuracy(model, x, labels),
        losses=losses,
        cpu_seconds=used,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


@torch.no_grad()
def accuracy(model: S4Model, x: Tensor, labels: Tensor) -> float:
    """The share of sequences that `model` classifies rightly."""
    return (model.eval()(x).argmax(-1) == labels).double().mean().item()


def plot(outcomes: list[Outcome], path: Path) -> None:
    """Loss over epochs, one line a seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    for outcome in outcomes:
        epochs = range(1, len(outcome.losses) + 1)
        axes.semilogy(epochs, outcome.losses, label=f"seed {outcome.seed}: {outcome.test_accuracy:.1%} of the test images")
    axes.set(xlabel="epoch", ylabel="training loss", title="digits as sequences of 64 pixels")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Train with every seed and show the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--ssm-lr", type=float, default=4e-3, help="learning rate of the state spaces")
    parser.add_argument("--layer", choices=("s4d", "s4"), default="s4d")
    parser.add_argument("--d-model", type=int, default=64)
    parser.add_argument("--n-layers", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--plot", type=Path, help="where to save a plot of the training loss")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("loss {task.fields[loss]:.3f}"))
    with Progress(*columns, console=console) as progress:
        outcomes = [train(options, seed, progress) for seed in options.seeds]
    table = Table("seed", "test accuracy", "train accuracy", "CPU seconds", "parameters")
    for outcome in outcomes:
        scores = (f"{outcome.test_accuracy:.4f}", f"{outcome.train_accuracy:.4f}", f"{outcome.cpu_seconds:.1f}")
        table.add_row(str(outcome.seed), *scores, f"{outcome.parameters:,}")
    mean = sum(outcome.test_accuracy for outcome in outcomes) / len(outcomes)
    console.print(table, f"mean test accuracy {mean:.4f}")
    if options.json:
        settings = {name: value for name, value in vars(options).items() if name not in ("json", "plot")}
        results = {"settings": settings, "mean_test_accuracy": mean, "runs": [asdict(outcome) for outcome in outcomes]}
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.plot:
        plot(outcomes, options.plot)


if __name__ == "__main__":
    main()
