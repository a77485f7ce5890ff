"""Handwritten digits of 8 by 8 pixels, row by row."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from pararnn.errors import ConfigError
from pararnn_cola.tasks.base import checked_seed
from pararnn_cola.tasks.classification import Classification
from pararnn_cola.tasks.placement import Placement

TRAINING = 1400
"""How many of the 1797 images are for training; the rest are for tests."""


class Digits(Classification):
    """Images of digits as 8 steps of 8 brightnesses from 0 to 1, top row first; wanted is the digit.

    1400 of the images, which a permutation of `seed` decides, are for training, the other 397 for tests. `evaluate` is that of `Classification`.

    Raises:
        ConfigError: scikit-learn, which holds the images, cannot be imported, or `placement` is none (see `loss_weights`).

    Source: Alpaydin and Kaynak (1998), UCI Machine Learning Repository, the test part, as scikit-learn ships it.
    """

    name = "digits"

    def __init__(self, placement: Placement = "every", *, seed: int = 0) -> None:
        try:
            load: Any = importlib.import_module("sklearn.datasets").load_digits
        except ImportError as error:
            raise ConfigError(f"the task digits needs scikit-learn ({error}); pip install 'pararnn-cola[tasks]'") from error
        pixels, labels = load(return_X_y=True)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(checked_seed(seed)))
        images = torch.tensor(pixels / 16, dtype=torch.float32).view(-1, 8, 8)[order]
        classes = torch.tensor(labels, dtype=torch.int64)[order]
        super().__init__((images[:TRAINING], classes[:TRAINING]), (images[TRAINING:], classes[TRAINING:]), classes=10, placement=placement)
        self.seed = seed

    def _options(self) -> dict[str, Any]:
        return {"placement": self.placement, "seed": self.seed}
