"""Expressions as one graph in which equal operations are one, and what of it can be computed when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pararnn.compiler.program import Expression, Operation, Value


@dataclass(frozen=True)
class Stage:
    """Operations that are computed in one pass: from names that are there before, to the named results that are kept."""

    operations: tuple[Operation, ...]
    inputs: tuple[str, ...]
    outputs: tuple[Value, ...]


class Graph:
    """Operations over inputs that come at certain stages: 0 what the channel alone decides, 1 what is known of each step beforehand, 2 the rest.

    Args:
        stages: of the inputs, by name.
    """

    def __init__(self, stages: Mapping[str, int]) -> None:
        self.stages: dict[str, int] = dict(stages)
        self.operations: dict[str, Operation] = {}
        self._known: dict[tuple[str, tuple[str, ...]], str] = {}

    def add(self, expression: Expression, inputs: Mapping[str, Value]) -> tuple[Value, ...]:
        """The outputs of `expression`, its inputs given by names of this graph or constants."""
        values: dict[str, Value] = dict(inputs)

        def meaning(value: Value) -> Value:
            return values[value] if isinstance(value, str) else value

        for operation in expression:
            values[operation.result] = self._emit(operation.primitive, tuple(map(meaning, operation.arguments)))
        return tuple(map(meaning, expression.outputs))

    def _emit(self, primitive: str, arguments: tuple[Value, ...]) -> Value:
        # A costate of one is put into what is linear in it; its products would otherwise be kept apart from the factors.
        if primitive == "mul" and 1.0 in arguments:
            return arguments[1] if arguments[0] == 1.0 else arguments[0]
        # By their text, because NaN is not equal to itself, and -0.0 is to 0.0.
        key = primitive, tuple(map(repr, arguments))
        if key not in self._known:
            name = f"n{len(self.operations)}"
            self._known[key] = name
            self.operations[name] = Operation(name, primitive, arguments)
            self.stages[name] = max((self.stages[argument] for argument in arguments if isinstance(argument, str)), default=0)
        return self._known[key]

    def stage(self, number: int, outputs: Iterable[Value]) -> Stage:
        """What stage `number` has to compute for `outputs`, which may be results of earlier stages too."""
        wanted = tuple(outputs)
        needed: set[str] = set()
        waiting = [value for value in wanted if isinstance(value, str)]
        while waiting:
            name = waiting.pop()
            if name in needed:
                continue
            needed.add(name)
            if self._is_made_in(name, number):
                waiting += [argument for argument in self.operations[name].arguments if isinstance(argument, str)]
        operations = tuple(self.operations[name] for name in self.operations if name in needed and self._is_made_in(name, number))
        return Stage(operations, tuple(sorted(name for name in needed if not self._is_made_in(name, number))), wanted)

    def kept(self, number: int, *stages: Stage) -> tuple[str, ...]:
        """The results of stage `number` that the later `stages` take."""
        return tuple(dict.fromkeys(name for stage in stages for name in stage.inputs if self._is_made_in(name, number)))

    def _is_made_in(self, name: str, number: int) -> bool:
        return name in self.operations and self.stages[name] == number
