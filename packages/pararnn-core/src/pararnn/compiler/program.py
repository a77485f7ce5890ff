"""What a traced step is: operands and straight-line lists of pointwise operations, before any language."""

from __future__ import annotations

import enum
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

Value: TypeAlias = str | float
"""The name of a value, or a constant. Truth values are 1.0 and 0.0 as constants; comparisons name truth values."""


class Kind(enum.Enum):
    """How an operand of a step varies; the value is the letter that names it in sources."""

    ELEMENT = "e"
    """By step and channel: a leaf `(rows, time, state)`."""

    STEP = "t"
    """By step: a leaf `(rows, time, 1)`."""

    CHANNEL = "c"
    """By channel: a leaf or parameter `(state,)`."""

    SCALAR = "s"
    """One number: a leaf or parameter with a single element, `()` or `(1,)` or such."""

    @property
    def words(self) -> str:
        """How many numbers there are, for a reader."""
        return {"e": "a number for each step and channel", "t": "one for each step", "c": "one for each channel", "s": "one in all"}[self.value]

    @property
    def is_timed(self) -> bool:
        """Whether it runs along the sequence."""
        return self in (Kind.ELEMENT, Kind.STEP)


@dataclass(frozen=True)
class Operation:
    """`result = primitive(*arguments)`; the primitives are those of `pararnn.compiler.primitives`."""

    result: str
    primitive: str
    arguments: tuple[Value, ...]

    def __str__(self) -> str:
        return f"{self.result} = {self.primitive}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True)
class Expression:
    """A straight line of operations from `inputs` to `outputs`; every name is assigned once, before it is used."""

    inputs: tuple[str, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[Value, ...]

    def __str__(self) -> str:
        lines = [f"({', '.join(self.inputs)})", *map(str, self.operations), f"return {', '.join(map(str, self.outputs))}"]
        return "\n    ".join(lines)

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.operations)


@dataclass(frozen=True)
class Program:
    """A channelwise step: its operands, and what it computes.

    Attributes:
        kinds: of the operands, in order: the leaves of the drive, then the parameters that the step reads besides.
        value: inputs `state, o0, o1, ...`; output the next state.
        advance: the same inputs; outputs the next state, and its derivative by the state.
        pull: inputs `costate, state, o0, o1, ...`; outputs the gradients by the state and by each operand, from the gradient `costate` of the next
            state, all of them as numbers of one channel and one step: sums over channels or steps are left to the engine.
        together: how many of the first operands are columns of one tensor, which kernels may count on: each lies a number behind the one before.
        parts: how many operands lie side by side in each tensor that the solver is given, in order; empty where each has a tensor of its own. Engines
            are given them apart.
    """

    kinds: tuple[Kind, ...]
    value: Expression
    advance: Expression
    pull: Expression
    together: int = 0
    parts: tuple[int, ...] = ()

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the operands in the expressions: `o0`, `o1`, ..."""
        return tuple(f"o{index}" for index in range(len(self.kinds)))

    @cached_property
    def tensors(self) -> tuple[Kind, ...]:
        """The kinds of the tensors that the operands lie in."""
        return tuple(self.kinds[sum(self.parts[:index])] for index in range(len(self.parts))) or self.kinds

    @cached_property
    def key(self) -> str:
        """A digest of the content: equal programs have equal keys, in every process."""
        return hashlib.sha256(str(self).encode()).hexdigest()[:16]

    def listing(self, origins: Sequence[str]) -> str:
        """The content for a reader: `origins` says of each tensor where it comes from, such as `drive` or `self.bias`."""
        found = dict.fromkeys(self.tensors)
        lines = [f"operands ({'; '.join(f'{kind.name.lower()}: {kind.words}' for kind in found)})" if found else "no operands"]
        names = iter(self.operands)
        for kind, count, origin in zip(self.tensors, self.parts or [1] * len(self.kinds), origins, strict=True):
            several = f", which holds {count} numbers for each channel" if count > 1 else ""
            lines.append(f"    {', '.join(itertools.islice(names, count))}: {kind.name.lower()} of {origin}{several}")
        return "\n".join((*lines, f"value {self.value}", f"advance {self.advance}", f"pull {self.pull}"))

    def __hash__(self) -> int:
        # Programs are keys of what is made from them, at every solve.
        return hash(self.key)

    def __str__(self) -> str:
        kinds = ", ".join(f"{name}: {kind.name.lower()}" for name, kind in zip(self.operands, self.kinds, strict=True))
        first = f"{self.together} columns, " if self.together else ""
        last = f", side by side {' + '.join(map(str, self.parts))}" if self.parts else ""
        return f"operands {first}{kinds}{last}\nvalue {self.value}\nadvance {self.advance}\npull {self.pull}"
