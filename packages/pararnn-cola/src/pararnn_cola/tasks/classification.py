"""Naming the class of a sequence, from data of any origin."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from pararnn.errors import ConfigError, DTypeError, InputError, ShapeError
from pararnn_cola.network import Network
from pararnn_cola.tasks.base import Batch, Task
from pararnn_cola.tasks.evaluation import answers
from pararnn_cola.tasks.placement import Placement


class Classification(Task):
    """Sequences with a class each, drawn with replacement; wanted is the class, at every step that has a loss.

    `train` and `test` are pairs of sequences `(n, time, input)` and labels `(n,)` from 0 to `classes - 1`. Sequences are floating point, or bytes,
    which are kept as such and divided by 255 when used. `evaluate` gives `accuracy` and `cross_entropy` (in nats) of the answers at the last step
    of the test sequences.

    Raises:
        ConfigError: there are less than 2 classes, or `placement` is none (see `loss_weights`).
        ShapeError, DTypeError, InputError: sequences or labels are not of that form, or not finite.
    """

    name: ClassVar[str] = "classification"
    loss: ClassVar[Literal["mse", "cross_entropy"]] = "cross_entropy"

    def __init__(self, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], *, classes: int, placement: Placement = "every") -> None:
        if classes < 2:
            raise ConfigError(f"classes={classes}; to tell classes apart takes at least 2", classes=classes)
        for name, part in (("train", train), ("test", test)):
            if not isinstance(part, tuple | list) or len(part) != 2:
                raise ConfigError(f"{name} is of type {type(part).__name__}; give a pair of sequences (n, time, input) and labels (n,)")
            _check(name, *part, classes)
        if train[0].shape[1:] != test[0].shape[1:]:
            raise ShapeError(
                f"training sequences are {tuple(train[0].shape[1:])}, test sequences {tuple(test[0].shape[1:])}; they have to be alike",
                train=tuple(train[0].shape),
                test=tuple(test[0].shape),
            )
        if train[0].dtype != test[0].dtype:
            raise DTypeError(f"training sequences are {train[0].dtype}, test sequences {test[0].dtype}; they have to be alike")
        super().__init__(train[0].shape[1], placement)
        self.input_size, self.output_size = train[0].shape[2], classes
        self.train, self.test = (train[0], train[1].long()), (test[0], test[1].long())

    def _draw(self, size: int, generator: torch.Generator) -> Batch:
        sequences, labels = self.train
        chosen = torch.randint(0, sequences.shape[0], (size,), generator=generator)
        return Batch(as_inputs(sequences[chosen]), labels[chosen].unsqueeze(1).expand(size, self.length), self.weights)

    def _measure(self, network: Network) -> dict[str, Tensor]:
        sequences, labels = self.test
        right, surprise = torch.zeros(2, *network.lead, dtype=torch.float64, device=network.readout.bias.device)
        for rows, time, output in answers(network, sequences, as_inputs):
            if time == self.length - 1:
                wanted = labels[rows].to(output.device).expand(output.shape[:-1])
                # Without a largest output there is no answer, and no share of right ones: argmax would name class 0.
                right += torch.where(output.isnan().any(-1), torch.nan, (output.argmax(-1) == wanted).double()).sum(-1)
                surprise -= output.double().log_softmax(-1).gather(-1, wanted.unsqueeze(-1)).sum((-2, -1))
        return {"accuracy": right / len(labels), "cross_entropy": surprise / len(labels)}

    def _options(self) -> dict[str, Any]:
        return {"length": self.length, "classes": self.output_size, "placement": self.placement}


def as_inputs(values: Tensor) -> Tensor:
    """`values`, bytes as numbers from 0 to 1."""
    return values.float() / 255 if values.dtype == torch.uint8 else values


def _check(name: str, sequences: Tensor, labels: Tensor, classes: int) -> None:
    if not isinstance(sequences, Tensor) or not isinstance(labels, Tensor):
        kinds = " and ".join(type(part).__name__ for part in (sequences, labels))
        raise DTypeError(f"{name} is a pair of {kinds}; two tensors were expected: torch.as_tensor makes one of an array")
    if sequences.dim() != 3 or 0 in sequences.shape or labels.shape != sequences.shape[:1]:
        raise ShapeError(
            f"{name} holds sequences {tuple(sequences.shape)} and labels {tuple(labels.shape)}; (n, time, input) and (n,) were expected",
            sequences=tuple(sequences.shape),
            labels=tuple(labels.shape),
        )
    if labels.is_floating_point() or labels.dtype == torch.bool or not (sequences.is_floating_point() or sequences.dtype == torch.uint8):
        raise DTypeError(f"{name} holds {sequences.dtype} sequences and {labels.dtype} labels; floating point or uint8, and integers, were expected")
    if not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise InputError(
            f"{name} has labels from {int(labels.min())} to {int(labels.max())}; {classes} classes are 0 to {classes - 1}", classes=classes
        )
    if sequences.is_floating_point() and not bool(sequences.isfinite().all()):
        raise InputError(f"{name} has {int((~sequences.isfinite()).sum())} values that are not finite; replace or leave out these sequences")
