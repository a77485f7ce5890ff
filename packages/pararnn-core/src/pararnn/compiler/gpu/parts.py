"""What of a step is kept from the first pass over a sequence to the later ones.

Much of a step may depend on its operands but not on the state. Of that, one number a step can be stored by the first pass and read by the others,
where this saves more than it costs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pararnn.compiler.program import Expression, Kind, Operation, Program
from pararnn.compiler.simplify import without_dead

# Instructions of each operation on a GPU in single precision, about; those that are not listed take one.
INSTRUCTIONS: Mapping[str, int] = {
    "exp": 2,
    "expm1": 12,
    "log": 18,
    "log1p": 32,
    "sqrt": 10,
    "rsqrt": 4,
    "sin": 20,
    "cos": 20,
    "tanh": 13,
    "sigmoid": 6,
    "softplus": 14,
    "erf": 25,
    "sign": 4,
    "div": 8,
    "pow": 120,
}
# Operands by step from which on a kernel reads fewer rows ahead: each row takes a register for each of them.
CROWD = 5
# A number is worth keeping if it saves as many instructions: it has to be stored and read.
WORTH_KEEPING = 12


def instructions(operations: Iterable[Operation]) -> int:
    """About how many instructions the operations take."""
    return sum(INSTRUCTIONS.get(operation.primitive, 1) for operation in operations)


def is_crowded(program: Program) -> bool:
    """Whether so many operands run along the sequence that registers are scarce."""
    return sum(kind.is_timed for kind in program.kinds) >= CROWD


def read(expression: Expression) -> frozenset[str]:
    """The inputs that `expression` reads."""
    used = {argument for operation in expression for argument in operation.arguments} | set(expression.outputs)
    return frozenset(name for name in expression.inputs if name in used)


def split(expression: Expression, early: Collection[str], prefix: str) -> tuple[Expression, Expression]:
    """What depends on the inputs `early` alone, and the rest, which takes results of the former as further inputs, called `prefix` and a number."""
    made = set(_made_of(expression, early))
    rest = [operation for operation in expression if operation.result not in made]
    wanted = [argument for operation in rest for argument in operation.arguments] + [*expression.outputs]
    crossing = tuple(dict.fromkeys(value for value in wanted if isinstance(value, str) and value in made))
    names: dict[str | float, str | float] = {value: f"{prefix}{index}" for index, value in enumerate(crossing)}

    def new(value: str | float) -> str | float:
        return names.get(value, value)

    first = without_dead(Expression(expression.inputs, tuple(operation for operation in expression if operation.result in made), crossing))
    operations = tuple(Operation(operation.result, operation.primitive, tuple(map(new, operation.arguments))) for operation in rest)
    return first, Expression((*expression.inputs, *map(str, names.values())), operations, tuple(map(new, expression.outputs)))


@dataclass(frozen=True)
class Kept:
    """A number of each step that the first pass stores and the others read.

    Attributes:
        making: how it comes from the operands.
        value, advance: the expressions of the program, with the number as a last input called `kept`.
    """

    making: Expression
    value: Expression
    advance: Expression


def kept(program: Program) -> Kept | None:
    """The number that is best kept from pass to pass; None where none is worth it."""
    elements = {name for name, kind in zip(program.operands, program.kinds, strict=True) if kind is Kind.ELEMENT}
    fixed = {name for name, kind in zip(program.operands, program.kinds, strict=True) if not kind.is_timed}
    inside = _not_made_of(program.value, fixed)
    best, most = None, WORTH_KEEPING - 1
    for candidate in _made_of(program.value, set(program.operands)):
        making = without_dead(Expression(program.value.inputs, program.value.operations, (candidate,)))
        if not read(making) & elements:
            continue
        left = {operation.result for operation in _given(program.value, candidate)}
        gain = instructions(operation for operation in program.value if operation.result in inside - left)
        advance = _same(program.advance, making)
        if gain > most and advance is not None:
            best, most = Kept(making, _given(program.value, candidate), _given(program.advance, advance)), gain
    return best


def _made_of(expression: Expression, inputs: Collection[str]) -> list[str]:
    """The results that depend on these inputs alone."""
    known = set(inputs)
    for operation in expression:
        if all(argument in known for argument in operation.arguments if isinstance(argument, str)):
            known.add(operation.result)
    return [operation.result for operation in expression if operation.result in known]


def _not_made_of(expression: Expression, inputs: Collection[str]) -> set[str]:
    return {operation.result for operation in expression} - set(_made_of(expression, inputs))


def _given(expression: Expression, name: str) -> Expression:
    """`expression` with the result `name` as an input `kept`. A difference that is kept is known the other way round, too."""
    made = next(operation for operation in expression if operation.result == name)
    reverse = made.arguments[::-1] if made.primitive == "sub" else None

    def given(operation: Operation) -> Operation:
        if operation.primitive == "sub" and operation.arguments == reverse:
            return Operation(operation.result, "neg", ("kept",))
        return Operation(operation.result, operation.primitive, tuple("kept" if value == name else value for value in operation.arguments))

    outputs = tuple("kept" if value == name else value for value in expression.outputs)
    operations = tuple(given(operation) for operation in expression if operation.result != name)
    return without_dead(Expression((*expression.inputs, "kept"), operations, outputs))


def _same(expression: Expression, making: Expression) -> str | None:
    """What `expression` calls the number that `making` makes; None where it does not compute it in the same way."""
    wanted = _meanings(making)[making.outputs[0]]
    return next((operation.result for operation in expression if _meanings(expression)[operation.result] == wanted), None)


def _meanings(expression: Expression) -> dict[str | float, object]:
    """Each result as a tree of operations."""
    meanings: dict[str | float, object] = {name: name for name in expression.inputs}
    for operation in expression:
        meanings[operation.result] = (operation.primitive, *(meanings.get(argument, argument) for argument in operation.arguments))
    return meanings
