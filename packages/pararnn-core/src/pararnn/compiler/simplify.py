"""Shorter lists of operations with the same results: also for infinities and NaN, so that `0 * x` stays what it is.

The one liberty: the sign of a zero may change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import torch
from torch.utils._python_dispatch import _disable_current_modes

from pararnn.compiler.primitives import PRIMITIVES
from pararnn.compiler.program import Expression, Operation, Value

COMMUTATIVE = frozenset(("add", "mul", "minimum", "maximum", "eq", "ne", "and", "or"))


def simplified(expression: Expression) -> Expression:
    """Constants computed, common operations once, operations that change nothing and dead ones gone; names in order of appearance."""
    writer = _Writer()
    for operation in expression:
        writer.write(operation)
    outputs = tuple(writer.resolved(output) for output in expression.outputs)
    return renamed(without_dead(Expression(expression.inputs, tuple(writer.operations), outputs)))


def without_dead(expression: Expression) -> Expression:
    """Without operations that no output needs."""
    needed = {output for output in expression.outputs if isinstance(output, str)}
    kept = []
    for operation in reversed(expression.operations):
        if operation.result in needed:
            kept.append(operation)
            needed.update(argument for argument in operation.arguments if isinstance(argument, str))
    return Expression(expression.inputs, tuple(reversed(kept)), expression.outputs)


def renamed(expression: Expression) -> Expression:
    """With results called `v0`, `v1`, ... in order, so that equal expressions are equal texts."""
    names: dict[Value, Value] = {operation.result: f"v{index}" for index, operation in enumerate(expression)}

    def new(value: Value) -> Value:
        return names.get(value, value) if isinstance(value, str) else value

    operations = tuple(
        Operation(f"v{index}", operation.primitive, tuple(map(new, operation.arguments))) for index, operation in enumerate(expression)
    )
    return Expression(expression.inputs, operations, tuple(map(new, expression.outputs)))


def with_input(expression: Expression, name: str, value: float) -> Expression:
    """With the constant `value` for the input `name`."""

    def new(argument: Value) -> Value:
        return value if argument == name else argument

    operations = tuple(Operation(operation.result, operation.primitive, tuple(map(new, operation.arguments))) for operation in expression)
    inputs = tuple(one for one in expression.inputs if one != name)
    return simplified(Expression(inputs, operations, tuple(map(new, expression.outputs))))


def restricted(expression: Expression, needs: Sequence[bool]) -> Expression:
    """With those outputs only that are needed; of `program.pull`, the gradient of the state comes first."""
    outputs = tuple(output for output, needed in zip(expression.outputs, needs, strict=True) if needed)
    return simplified(Expression(expression.inputs, expression.operations, outputs))


def split(expression: Expression, varying: Collection[str]) -> tuple[Expression, Expression]:
    """What can be computed before a loop in which only the inputs `varying` change, and what is left inside.

    The first gives values that the second takes as further inputs, under the names `k0`, `k1`, ... . Inputs and outputs of the second are otherwise
    those of `expression`, in the same order.
    """
    changing = {name for name in expression.inputs if name in varying}
    before, inside = [], []
    for operation in expression:
        if changing.isdisjoint(argument for argument in operation.arguments if isinstance(argument, str)):
            before.append(operation)
        else:
            changing.add(operation.result)
            inside.append(operation)
    computed = {operation.result for operation in before}
    wanted = [argument for operation in inside for argument in operation.arguments] + [*expression.outputs]
    crossing = tuple(dict.fromkeys(value for value in wanted if isinstance(value, str) and value in computed))
    names: dict[Value, Value] = {value: f"k{index}" for index, value in enumerate(crossing)}

    def new(value: Value) -> Value:
        return names.get(value, value) if isinstance(value, str) else value

    fixed = tuple(name for name in expression.inputs if name not in changing)
    loop = [Operation(operation.result, operation.primitive, tuple(map(new, operation.arguments))) for operation in inside]
    first = without_dead(Expression(fixed, tuple(before), crossing))
    second = Expression((*expression.inputs, *map(str, names.values())), tuple(loop), tuple(map(new, expression.outputs)))
    return renamed(first), renamed(second)


def _computed(primitive: str, arguments: Sequence[float]) -> float:
    """The number that PyTorch gives, in double precision, for constant arguments."""
    with _disable_current_modes():
        tensors = [torch.tensor(argument, dtype=torch.float64, device="cpu") for argument in arguments]
        return float(PRIMITIVES[primitive].meaning(*tensors))


class _Writer:
    """Rewrites operations one by one, each on arguments that are simple already."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._made: dict[str, Operation] = {}
        self._by_content: dict[tuple[str, ...], str] = {}
        self._values: dict[str, Value] = {}

    def resolved(self, value: Value) -> Value:
        return self._values.get(value, value) if isinstance(value, str) else value

    def write(self, operation: Operation) -> None:
        self._values[operation.result] = self.value(operation.primitive, *map(self.resolved, operation.arguments))

    def value(self, primitive: str, *arguments: Value) -> Value:
        """The value of a primitive: a constant, a name that exists, or a new line."""
        known = [argument for argument in arguments if not isinstance(argument, str)]
        if len(known) == len(arguments):
            return _computed(primitive, known)
        rule = RULES.get(primitive)
        simpler = None if rule is None else rule(self, *arguments)
        return self._line(primitive, arguments) if simpler is None else simpler

    def argument_of(self, value: Value, primitive: str) -> Value | None:
        """What `primitive` was applied to where `value` is its result."""
        made = self._made.get(value) if isinstance(value, str) else None
        return made.arguments[0] if made is not None and made.primitive == primitive else None

    def arguments_of(self, value: Value, primitive: str) -> tuple[Value, ...] | None:
        made = self._made.get(value) if isinstance(value, str) else None
        return made.arguments if made is not None and made.primitive == primitive else None

    def _line(self, primitive: str, arguments: tuple[Value, ...]) -> str:
        texts = [repr(argument) for argument in arguments]
        content = (primitive, *(sorted(texts) if primitive in COMMUTATIVE else texts))
        if content not in self._by_content:
            result = f"w{len(self.operations)}"
            operation = Operation(result, primitive, arguments)
            self.operations.append(operation)
            self._made[result] = operation
            self._by_content[content] = result
        return self._by_content[content]


def _neg(w: _Writer, x: Value) -> Value | None:
    inner = w.argument_of(x, "neg")
    if inner is not None:
        return inner
    difference = w.arguments_of(x, "sub")
    return None if difference is None else w.value("sub", difference[1], difference[0])


def _add(w: _Writer, x: Value, y: Value) -> Value | None:
    for one, other in ((x, y), (y, x)):
        if other == 0:
            return one
        opposite = w.argument_of(other, "neg")
        if opposite is not None:
            return w.value("sub", one, opposite)
    return None


def _sub(w: _Writer, x: Value, y: Value) -> Value | None:
    if y == 0:
        return x
    if x == 0:
        return w.value("neg", y)
    opposite = w.argument_of(y, "neg")
    return None if opposite is None else w.value("add", x, opposite)


def _mul(w: _Writer, x: Value, y: Value) -> Value | None:
    for one, other in ((x, y), (y, x)):
        if other == 1:
            return one
        if other == -1:
            return w.value("neg", one)
        opposite = w.argument_of(other, "neg")
        if opposite is not None:
            return w.value("mul", -one, opposite) if not isinstance(one, str) else w.value("neg", w.value("mul", one, opposite))
    return None


def _div(w: _Writer, x: Value, y: Value) -> Value | None:
    if y == 1:
        return x
    if y == -1:
        return w.value("neg", x)
    if not isinstance(y, str) and y and math.isfinite(y) and math.frexp(y)[0] in (0.5, -0.5):
        # A power of two: its reciprocal is exact.
        return w.value("mul", x, 1 / y)
    opposite = w.argument_of(x, "neg")
    return None if opposite is None else w.value("neg", w.value("div", opposite, y))


def _pow(w: _Writer, x: Value, y: Value) -> Value | None:
    return x if y == 1 else None


def _where(w: _Writer, condition: Value, yes: Value, no: Value) -> Value | None:
    if not isinstance(condition, str):
        return yes if condition else no
    if repr(yes) == repr(no):
        return yes
    opposite = w.argument_of(condition, "not")
    return None if opposite is None else w.value("where", opposite, no, yes)


def _and(w: _Writer, x: Value, y: Value) -> Value | None:
    for one, other in ((x, y), (y, x)):
        if not isinstance(other, str):
            return one if other else 0.0
    return x if x == y else None


def _or(w: _Writer, x: Value, y: Value) -> Value | None:
    for one, other in ((x, y), (y, x)):
        if not isinstance(other, str):
            return 1.0 if other else one
    return x if x == y else None


def _not(w: _Writer, x: Value) -> Value | None:
    return w.argument_of(x, "not")


RULES: dict[str, Callable[..., Value | None]] = {
    "neg": _neg,
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "where": _where,
    "and": _and,
    "or": _or,
    "not": _not,
}
