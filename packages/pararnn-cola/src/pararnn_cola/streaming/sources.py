"""Where steps come from: iterators of steps, and loaders of sequences.

A source tells the driver which step ends a sequence, and can begin at any position, so that a run that was interrupted can go on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sized
from typing import Any, NamedTuple

from torch import Tensor

from pararnn.errors import ConfigError
from pararnn_cola.errors import StreamError
from pararnn_cola.streaming.items import Form, Step, sequence_of, step_of


class Position(NamedTuple):
    """How far into its data a run is."""

    steps: int = 0
    sequences: int = 0
    """sequences that have ended"""
    inside: int = 0
    """steps of the sequence that has not"""


class Source(ABC):
    """Steps in their order, always the same ones."""

    total: int | None = None
    """steps in all, as far as it is known yet"""

    @abstractmethod
    def steps(self, form: Form, start: Position) -> Iterator[tuple[Step, bool]]:
        """Each step from `start` on, for a network of that `form`, and whether a sequence ends with it."""

    @abstractmethod
    def describe(self) -> str:
        """What a checkpoint remembers, to tell other data from these."""


class StepSource(Source):
    """An iterable of steps; whatever comes before the start is read and dropped."""

    def __init__(self, data: Iterable[Any]) -> None:
        self.data = data
        if isinstance(data, Sized):
            self.total = len(data)

    def steps(self, form: Form, start: Position) -> Iterator[tuple[Step, bool]]:
        iterator = iter(self.data)
        for number in range(start.steps):
            if next(iterator, iterator) is iterator:
                raise _too_short(f"{number} steps", f"{start.steps} steps")
        for number, item in enumerate(iterator, start.steps):
            yield step_of(item, number, form), False

    def describe(self) -> str:
        return "steps"


class SequenceSource(Source):
    """What `sequences` makes."""

    def __init__(self, loader: Iterable[Any], epochs: int) -> None:
        if epochs < 1:
            raise ConfigError(f"epochs={epochs}; it is at least 1", epochs=epochs)
        if epochs > 1 and iter(loader) is loader:
            raise ConfigError(f"an iterator can be read once, but epochs={epochs}; give a DataLoader or another iterable that can start anew")
        self.loader, self.epochs = loader, epochs
        size = getattr(loader, "batch_size", None)
        self.batch_size = size if isinstance(size, int) else None

    def steps(self, form: Form, start: Position) -> Iterator[tuple[Step, bool]]:
        number = 0
        for _ in range(self.epochs):
            for item in self.loader:
                if number >= start.sequences:
                    sequence = sequence_of(item, number, form, self.batch_size)
                    if self.total is None and isinstance(self.loader, Sized):
                        self.total = sequence.length * len(self.loader) * self.epochs
                    for t in range(start.inside if number == start.sequences else 0, sequence.length):
                        yield sequence.step(t), t + 1 == sequence.length
                number += 1
        if number < start.sequences:
            raise _too_short(f"{number} sequences", f"{start.sequences} sequences")

    def describe(self) -> str:
        return "sequences"


def sequences(loader: Iterable[Any], *, epochs: int = 1) -> SequenceSource:
    """Sequences, each learned from its first step to its last.

        train(learner, sequences(loader))

    An item of `loader`, such as a DataLoader, is `(inputs (batch, time, input), targets (batch, time, ...)[, weights[, mask]])` or an object with
    attributes of these names. Weights are `(time,)` or `(batch, time)`, a mask is `(batch, time)`, false where a row has no step: sequences that
    end early are padded. Lengths and batches may differ from item to item; a last, smaller batch starts with states of its own size.

    A run that is resumed reads and drops what it has learned already, so the loader has to give the same order again: seed its generator if it
    shuffles.

    Raises:
        ConfigError: `epochs` is below 1, or above it for an iterator.
    """
    return SequenceSource(loader, epochs)


def source_of(data: Any) -> Source:
    """The source that `data` is, or an iterable of steps.

    Raises:
        ConfigError: `data` is neither.
    """
    if isinstance(data, Source):
        return data
    if isinstance(data, Tensor) or type(data).__module__.partition(".")[0] == "numpy":
        raise ConfigError(
            f"data is an array of shape {tuple(data.shape)}, of which nobody can tell inputs from targets; use memmap_stream(array, batch=...) for "
            "its rows in their order, or sequences([(inputs, targets)])"
        )
    if not isinstance(data, Iterable):
        raise ConfigError(f"data of type {type(data).__name__} cannot be iterated over; give steps (u, y), sequences(loader) or memmap_stream(array)")
    return StepSource(data)


def _too_short(found: str, wanted: str) -> StreamError:
    return StreamError(f"the data end after {found}, but the checkpoint was written after {wanted}; give the data it was made with, from their start")
