"""Images read row by row, from files that the user has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pararnn_cola.tasks.cifar import read_binary, read_pickle
from pararnn_cola.tasks.classification import Classification
from pararnn_cola.tasks.files import Source
from pararnn_cola.tasks.idx import IMAGES, LABELS, read_idx
from pararnn_cola.tasks.placement import Placement

MNIST = Source(title="MNIST", address="https://ossci-datasets.s3.amazonaws.com/mnist/", folders=(".", "raw", "MNIST/raw"))
CIFAR10 = Source(
    title="CIFAR-10",
    address="https://www.cs.toronto.edu/~kriz/cifar.html",
    folders=(".", "cifar-10-batches-py", "cifar-10-batches-bin"),
)


class RowMNIST(Classification):
    """Images of digits as 28 steps of 28 brightnesses from 0 to 1, top row first; wanted is the digit. `evaluate` is that of `Classification`.

    `path` is the folder of the four files `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte` and
    `t10k-labels-idx1-ubyte`, each with `.gz` or without, or a folder above it, as torchvision keeps them. Fashion-MNIST comes in the same files.

    Raises:
        ConfigError: a file is missing, or `placement` is none (see `loss_weights`).
        InputError: a file is not what it should be.

    Source: LeCun, Bottou, Bengio and Haffner (1998).
    """

    name = "row_mnist"

    def __init__(self, path: str | os.PathLike[str], placement: Placement = "every") -> None:
        self.path = MNIST.folder(path)
        super().__init__(_mnist(self.path, "train"), _mnist(self.path, "t10k"), classes=10, placement=placement)

    def _options(self) -> dict[str, Any]:
        return {"path": str(self.path), "placement": self.placement}


class RowCIFAR10(Classification):
    """Images as 32 steps of 96 brightnesses from 0 to 1: the top row's 32 of red, then of green, then of blue, and so on; wanted is what they show.

    `path` is the folder that the Python version (`data_batch_1` to `data_batch_5`, `test_batch`) or the binary version (the same, with `.bin`)
    unpacks to, or the one above it. Pickles are read without running what they ask for. `evaluate` is that of `Classification`.

    Raises:
        ConfigError: a file is missing, or `placement` is none (see `loss_weights`).
        InputError: a file is not what it should be.

    Source: Krizhevsky (2009).
    """

    name = "row_cifar10"

    def __init__(self, path: str | os.PathLike[str], placement: Placement = "every") -> None:
        self.path = CIFAR10.folder(path)
        train = [_cifar(self.path, f"data_batch_{number}") for number in range(1, 6)]
        together = torch.cat([images for images, _ in train]), torch.cat([labels for _, labels in train])
        super().__init__(together, _cifar(self.path, "test_batch"), classes=10, placement=placement)

    def _options(self) -> dict[str, Any]:
        return {"path": str(self.path), "placement": self.placement}


def _mnist(path: Path, part: str) -> tuple[Tensor, Tensor]:
    # The second form of each name is that of some mirrors.
    at_images = MNIST.find(path, f"{part}-images-idx3-ubyte", f"{part}-images.idx3-ubyte")
    at_labels = MNIST.find(path, f"{part}-labels-idx1-ubyte", f"{part}-labels.idx1-ubyte")
    images, labels = read_idx(MNIST, at_images, IMAGES), read_idx(MNIST, at_labels, LABELS)
    if images.shape[1:] != (28, 28):
        raise MNIST.broken(at_images, f"has images of {images.shape[1]} x {images.shape[2]} pixels, 28 x 28 were expected")
    if len(labels) != len(images):
        raise MNIST.broken(at_labels, f"has {len(labels)} labels for the {len(images)} images of {at_images.name}")
    if int(labels.max()) > 9:
        raise MNIST.broken(at_labels, f"has the label {int(labels.max())}; digits are 0 to 9")
    return images, labels


def _cifar(path: Path, batch: str) -> tuple[Tensor, Tensor]:
    found = CIFAR10.find(path, batch, f"{batch}.bin")
    images, labels = (read_binary if found.name.removesuffix(".gz").endswith(".bin") else read_pickle)(CIFAR10, found)
    return images.transpose(1, 2).reshape(-1, 32, 96), labels
