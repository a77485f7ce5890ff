"""What a person is doing, from the sensors of a telephone at the waist."""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pararnn_cola.tasks.classification import Classification
from pararnn_cola.tasks.files import Source
from pararnn_cola.tasks.placement import Placement

HAR = Source(
    title="UCI HAR",
    address="https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones",
    folders=(".", "UCI HAR Dataset"),
)
SIGNALS = tuple(f"{signal}_{axis}" for signal in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
"""The inputs, in their order."""
SAMPLES = 128
"""Samples a window, at 50 a second."""
ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying")
"""The classes 0 to 5, which the files number from 1."""


class UCIHAR(Classification):
    """Windows of 128 samples of 9 signals (acceleration of the body, turning, whole acceleration, along x, y and z); wanted is the activity, 0 to 5.

    Each signal is normalised by its mean and standard deviation over the training windows. `path` is the folder that the archive unpacks to, with
    `train` and `test` in it, or the one above. `evaluate` is that of `Classification`; the people of the tests are others than those of the training.

    Raises:
        ConfigError: a file is missing, or `placement` is none (see `loss_weights`).
        InputError: a file is not what it should be.

    Source: Anguita, Ghio, Oneto, Parra and Reyes-Ortiz (2013).
    """

    name = "uci_har"

    def __init__(self, path: str | os.PathLike[str], placement: Placement = "every") -> None:
        self.path = HAR.folder(path)
        train, labels = _part(self.path, "train")
        test, test_labels = _part(self.path, "test")
        # A signal that never changes says nothing; it is left at zero instead of being divided by it.
        spread = train.std((0, 1), correction=0)
        mean, spread = train.mean((0, 1)), torch.where(spread > 0, spread, 1)
        normal, normal_test = (((windows - mean) / spread).float() for windows in (train, test))
        super().__init__((normal, labels), (normal_test, test_labels), classes=len(ACTIVITIES), placement=placement)

    def _options(self) -> dict[str, Any]:
        return {"path": str(self.path), "placement": self.placement}


def _part(path: Path, part: str) -> tuple[Tensor, Tensor]:
    """Windows `(n, time, signal)` in float64 and labels `(n,)`."""
    at_labels = HAR.find(path, f"{part}/y_{part}.txt")
    numbers = _numbers(at_labels)
    labels = numbers.long() - 1
    if not bool(((labels + 1 == numbers) & (labels >= 0) & (labels < len(ACTIVITIES))).all()):
        raise HAR.broken(at_labels, f"has labels from {float(numbers.min()):g} to {float(numbers.max()):g}; whole numbers from 1 to 6 were expected")
    windows = []
    for signal in SIGNALS:
        at = HAR.find(path, f"{part}/Inertial Signals/{signal}_{part}.txt")
        values = _numbers(at)
        if len(values) != SAMPLES * len(labels):
            raise HAR.broken(at, f"has {len(values)} numbers; {SAMPLES} for each of the {len(labels)} labels of {at_labels.name} were expected")
        windows.append(values.view(-1, SAMPLES))
    return torch.stack(windows, -1), labels


def _numbers(path: Path) -> Tensor:
    """The numbers in a text file, in float64."""
    content = HAR.read(path)
    if b"_" in content:
        # `float` takes "1_0" for 10, as Python's own source does.
        raise HAR.broken(path, "is no text of numbers (there is an underscore in it)")
    try:
        values = array("d", map(float, content.split()))
    except ValueError as error:
        raise HAR.broken(path, f"is no text of numbers ({error})") from error
    if not values:
        raise HAR.broken(path, "is empty")
    numbers = torch.frombuffer(values, dtype=torch.float64)
    if not bool(numbers.isfinite().all()):
        raise HAR.broken(path, f"has {int((~numbers.isfinite()).sum())} numbers that are not finite")
    return numbers
