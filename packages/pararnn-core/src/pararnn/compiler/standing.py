"""What the tensors of a step stand for while it is followed, by the memory that they share with their views."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pararnn.compiler.labels import ANY, CHANNEL, PART, ROW, blank
from pararnn.compiler.numbers import BROKEN, Number
from pararnn.compiler.storages import storage


@dataclass
class Parts:
    """Several numbers, and labels that say which of them stands where in a tensor, or in the memory `(places, 3)` that tensors share."""

    numbers: list[Number]
    labels: Tensor
    # Of memory: what views of a single number are, by where they lie.
    singles: dict[tuple[Any, ...], Number | None] = field(default_factory=dict)

    def at(self, tensor: Tensor) -> Parts:
        """What a tensor has of this memory, as a view."""
        strides = (*(3 * stride for stride in tensor.stride()), 1)
        return Parts(self.numbers, self.labels.as_strided((*tensor.shape, 3), strides, 3 * tensor.storage_offset()))

    def write(self, tensor: Tensor, parts: Parts) -> None:
        """Let the places of `tensor` in this memory hold `parts`."""
        self.at(tensor).labels.copy_(parts.shifted(len(self.numbers)))
        self.numbers += parts.numbers
        self.singles.clear()

    def expanded(self, shape: Sequence[int]) -> Parts:
        """The same over a shape that it broadcasts to."""
        return Parts(self.numbers, self.labels.expand(*shape, 3))

    def shifted(self, count: int) -> Tensor:
        """The labels where these numbers come after `count` others."""
        labels = self.labels.clone()
        labels[..., PART] += count
        return labels


class Standing:
    """Numbers by tensor, and the names of those that are operands.

    Attributes:
        read: the names that the step has come upon.
    """

    def __init__(self) -> None:
        self.read: set[str] = set()
        self._names: dict[int, str] = {}
        self._found: dict[int, Number | Parts] = {}
        self._alive: list[Tensor] = []

    def name(self, tensor: Tensor, name: str) -> None:
        """Call an operand by its name."""
        self._names[storage(tensor)] = name

    def name_of(self, tensor: Tensor) -> str | None:
        """The name of the operand that a tensor shares memory with."""
        return self._names.get(storage(tensor))

    def of(self, tensor: Tensor) -> Number | Parts | None:
        """What the memory of a tensor stands for; None where nobody said."""
        if (name := self.name_of(tensor)) is not None:
            self.read.add(name)
        return self._found.get(storage(tensor))

    def has_parts(self, tensor: Tensor) -> bool:
        """Whether a tensor, or what it is a view of, holds several numbers a channel."""
        return isinstance(self._found.get(storage(tensor)), Parts)

    def put(self, tensor: Tensor, found: Number) -> None:
        """Let a tensor, and what it is a view of, stand for a number."""
        self._found[storage(tensor)] = found
        # Memory is known by its address, which must not be given to another while the step is followed.
        self._alive.append(tensor)

    def put_parts(self, tensor: Tensor, parts: Parts) -> bool:
        """Let a tensor stand for several numbers; False where it is not the whole of its memory."""
        places, sizes, labels = tensor.untyped_storage().nbytes() // tensor.element_size(), [*tensor.shape], parts.labels
        for dim, stride in enumerate(tensor.stride()):
            if stride == 0 and sizes[dim] > 1:
                # A single place in memory stands for all along a dimension that was expanded.
                rest = labels.narrow(dim, 0, 1).clone()
                for axis in (ROW, CHANNEL):
                    rest[..., axis].masked_fill_((labels[..., axis] != rest[..., axis]).any(dim, keepdim=True), ANY)
                labels, sizes[dim] = rest, 1
        if math.prod(sizes) != places:
            return False
        memory = blank((places,))
        memory.as_strided((*sizes, 3), (*(3 * stride for stride in tensor.stride()), 1), 3 * tensor.storage_offset()).copy_(labels)
        self._found[storage(tensor)] = Parts([*parts.numbers], memory)
        self._alive.append(tensor)
        return True

    def is_constant(self, tensors: Iterable[Tensor]) -> bool:
        """Whether all are known already."""
        found = [self._found.get(storage(tensor)) for tensor in tensors]
        return all(isinstance(one, Number) and one.is_constant for one in found)

    def is_broken(self, args: Iterable[Any]) -> bool:
        """Whether an obstacle told of one of them."""
        return any(isinstance(arg, Tensor) and self._found.get(storage(arg)) is BROKEN for arg in args)
