"""CIFAR-100 and Moving MNIST as their authors give them out, and small stand-ins made of random numbers and drawn squares."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from bouncing import videos
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Tensors whose first dimension is the sample."""

    train: tuple[Tensor, ...]
    test: tuple[Tensor, ...]


def there(path: Path | None, name: str, where: str) -> Path:
    """`path`, if it exists.

    Raises:
        click.ClickException: it does not, or none was given.
    """
    if path is None or not path.exists():
        found = "no --data was given" if path is None else f"there is nothing at {path}"
        raise click.ClickException(f"{name} is not part of this repository, and {found}. {where} Or try --small, which needs no data.")
    return path


def cifar100(path: Path | None) -> Split:
    """Images `(samples, 3, 32, 32)`, normalised by channel, and fine labels, from the folder of the "python version".

    Its two files are pickles: loading one runs what is written in it, so take them from their authors.
    """
    where = "Unpack cifar-100-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html and pass the folder cifar-100-python."
    parts = []
    for name in ("train", "test"):
        file = there(path and path / name, "CIFAR-100", where)
        with file.open("rb") as stream:
            content: dict[bytes, Any] = pickle.load(stream, encoding="bytes")
        images = torch.as_tensor(content[b"data"]).view(-1, 3, 32, 32).float() / 255
        parts.append((images, torch.tensor(content[b"fine_labels"])))
    centre, scale = (statistic(parts[0][0], (0, 2, 3)).view(3, 1, 1) for statistic in (torch.mean, torch.std))
    train, test = (((images - centre) / scale, labels) for images, labels in parts)
    return Split(train, test)


def moving_mnist(path: Path | None, *, held_out: float = 0.1) -> Split:
    """Films `(samples, frames, side, side)` of bytes, from an array `(frames, samples, side, side)`; the last of them are held out.

    The public file of that form is meant as a test set of 10000 films; that the last tenth of them is held out here is our choice.
    """
    import numpy as np

    where = "Pass the file mnist_test_seq.npy of https://www.cs.toronto.edu/~nitish/unsupervised_video/."
    film = torch.from_numpy(np.load(there(path, "Moving MNIST", where))).transpose(0, 1)
    count = round(len(film) * (1 - held_out))
    return Split((film[:count],), (film[count:],))


def small_images(*, classes: int = 4, samples: int = 64) -> Split:
    """Noise in which the class is a shade of red."""
    labels = torch.arange(samples) % classes
    images = torch.randn(samples, 3, 16, 16)
    images[:, 0] += labels.view(-1, 1, 1) - (classes - 1) / 2
    half = samples // 2
    return Split((images[:half], labels[:half]), (images[half:], labels[half:]))


def small_videos(*, samples: int = 16, frames: int = 6, side: int = 32) -> Split:
    """Bouncing squares."""
    film = videos(torch.ones(1, 6, 6), samples, frames=frames, canvas=side)
    return Split((film[: samples // 2],), (film[samples // 2 :],))


LOADERS: dict[str, Callable[[Path | None], Split]] = {"cifar100": cifar100, "moving-mnist": moving_mnist}
