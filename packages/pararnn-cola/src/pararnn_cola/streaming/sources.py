"""Where steps come from: iterators of steps, and loaders of sequences.

A source tells the driver which step ends a sequence, and can begin at any position, so that a run that was interrupted can go on.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
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
    def describe(self) -> dict[str, Any]:
        """What a checkpoint remembers, to tell other data from these: their "kind", and numbers, texts and lists of them."""

    def others(self, saved: dict[str, Any], start: Position) -> list[str]:
        """Which parts of a description that was `saved` at `start` show that it is one of other data."""
        mine = self.describe()
        return [name for name in {**saved, **mine} if saved.get(name) != mine.get(name)]


class ItemSource(Source):
    """Data of which no more is known than their number, if at all."""

    kind: str

    def __init__(self, data: Iterable[Any]) -> None:
        self.length = length_of(data)
        size = getattr(data, "batch_size", None)
        self.batch_size = size if isinstance(size, int) else None

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "length": self.length, "batch size": self.batch_size}

    def others(self, saved: dict[str, Any], start: Position) -> list[str]:
        mine, length = self.describe(), saved.get("length")
        grown = isinstance(length, int) and self.length is not None and self.length > length and self._may_grow(length, start)
        # What is not known on one side shows nothing.
        known = [name for name in super().others(saved, start) if saved.get(name) is not None and mine.get(name) is not None]
        return [name for name in known if name != "length" or not grown]

    def _may_grow(self, before: int, start: Position) -> bool:
        return True


class StepSource(ItemSource):
    """An iterable of steps; whatever comes before the start is read and dropped."""

    kind = "steps"

    def __init__(self, data: Iterable[Any]) -> None:
        super().__init__(data)
        self.data, self.total = data, self.length

    def steps(self, form: Form, start: Position) -> Iterator[tuple[Step, bool]]:
        iterator = iter(self.data)
        for number in range(start.steps):
            if next(iterator, iterator) is iterator:
                raise too_short(f"{number} steps", f"{start.steps} steps")
        for number, item in enumerate(iterator, start.steps):
            yield step_of(item, number, form), False


class SequenceSource(ItemSource):
    """What `sequences` makes."""

    kind = "sequences"

    def __init__(self, loader: Iterable[Any], epochs: int) -> None:
        if hasattr(loader, "inputs") and hasattr(loader, "targets"):
            raise ConfigError(f"sequences() takes an iterable of batches, got one {type(loader).__name__}; give sequences([batch])")
        if isinstance(loader, Tensor) or not (hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")):
            raise ConfigError(f"sequences() takes an iterable of (inputs, targets), got {type(loader).__name__}; give sequences([(inputs, targets)])")
        super().__init__(loader)
        self.loader, self.epochs = loader, at_least_one("epochs", epochs)
        if epochs > 1 and isinstance(loader, Iterator):
            raise ConfigError(f"an iterator can be read once, but epochs={epochs}; give a DataLoader or another iterable that can start anew")

    def steps(self, form: Form, start: Position) -> Iterator[tuple[Step, bool]]:
        number, length = 0, None
        self.total = None
        for _ in range(self.epochs):
            for item in self.loader:
                if number >= start.sequences:
                    sequence = sequence_of(item, number, form, self.batch_size)
                    first = start.inside if number == start.sequences else 0
                    if first >= sequence.length:
                        raise too_short(f"step {sequence.length} of sequence {number}", f"step {first} of it")
                    if length is None and self.length is not None:
                        even = start.steps - start.inside == start.sequences * sequence.length
                        self.total = sequence.length * self.length * self.epochs if even else None
                    elif length != sequence.length:
                        self.total = None
                    length = sequence.length
                    for t in range(first, sequence.length):
                        yield sequence.step(t), t + 1 == sequence.length
                number += 1
        if number < start.sequences + (start.inside > 0):
            begun = f" and {start.inside} steps of another" if start.inside else ""
            raise too_short(f"{number} sequences", f"{start.sequences} sequences{begun}")

    def _may_grow(self, before: int, start: Position) -> bool:
        # What comes after the first pass has another number then.
        return self.epochs == 1 or start.sequences + (start.inside > 0) <= before


def sequences(loader: Iterable[Any], *, epochs: int = 1) -> SequenceSource:
    """Sequences, each learned from its first step to its last.

        train(learner, sequences(loader))

    An item of `loader`, such as a DataLoader, is `(inputs (batch, time, input), targets (batch, time, ...)[, weights[, mask]])` or an object with
    attributes of these names, such as a task's `Batch`. Weights are `(time,)` or `(batch, time)`, a mask is `(batch, time)`, false where a row has
    no step: sequences that end early are padded. Lengths and batches may differ from item to item; a last, smaller batch starts with states of its
    own size. The networks of an ensemble share such sequences; `(runs, batch, time, ...)` gives each its own.

    A run that is resumed reads and drops what it has learned already, so the loader has to give the same order again: seed its generator if it
    shuffles.

    Raises:
        ConfigError: `epochs` is below 1, or above it for an iterator; `loader` is one batch, or nothing to iterate over.
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
    if hasattr(data, "inputs") and hasattr(data, "targets"):
        raise ConfigError(f"data is one {type(data).__name__}, which has a time axis; give sequences([batch])")
    if not isinstance(data, Iterable):
        raise ConfigError(f"data of type {type(data).__name__} cannot be iterated over; give steps (u, y), sequences(loader) or memmap_stream(array)")
    return StepSource(data)


def at_least_one(name: str, value: Any) -> int:
    """`value`, the option called `name`, as a whole number from 1 on.

    Raises:
        ConfigError: it is none.
    """
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise ConfigError(f"{name}={value!r}; it is a whole number, at least 1", **{name: value})
    return number


def length_of(data: Any) -> int | None:
    """How many items `data` has; None where it does not know, as a loader of a stream, whose `len` raises."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def too_short(found: str, wanted: str) -> StreamError:
    """The error for data that end before the position where a checkpoint was written."""
    return StreamError(f"the data end after {found}, but the checkpoint was written after {wanted}; give the data it was made with, from their start")
