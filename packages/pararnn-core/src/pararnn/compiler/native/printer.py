"""Operations as lines of C; the functions are those of `csrc/functions.h`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pararnn.compiler.primitives import PRIMITIVES
from pararnn.compiler.program import Operation, Value

PATTERNS: dict[str, str] = {
    "neg": "-{0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    # Not && and ||: a branch would keep the loop from becoming vector code.
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "not": "!{0}",
    "where": "{0} ? {1} : {2}",
} | {
    name: f"T({name})({', '.join(f'{{{place}}}' for place in range(PRIMITIVES[name].arguments))})"
    for name in (
        *("abs", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "softplus", "erf", "floor", "sign"),
        *("pow", "minimum", "maximum"),
    )
}


def lines(operations: Sequence[Operation], truths: set[str]) -> list[str]:
    """A declaration for each operation; `truths` gathers which results are truth values."""
    return [_line(operation, truths) for operation in operations]


def number(value: Value, truths: set[str]) -> str:
    """An argument that is a number; truth values are 1 and 0."""
    if isinstance(value, str):
        return f"(real){value}" if value in truths else value
    if math.isnan(value):
        return "(real)NAN"
    if math.isinf(value):
        return "(real)INFINITY" if value > 0 else "(real)-INFINITY"
    return f"(real){float(value)!r}"


def truth(value: Value, truths: set[str]) -> str:
    """An argument that is a truth value; kept from one pass to the next it is a number."""
    if isinstance(value, str):
        return value if value in truths else f"({value} != 0)"
    return str(int(value != 0))


def _line(operation: Operation, truths: set[str]) -> str:
    primitive = operation.primitive
    written = [_writer(primitive, place)(argument, truths) for place, argument in enumerate(operation.arguments)]
    text = PATTERNS[primitive].format(*written)
    if PRIMITIVES[primitive].is_truth:
        truths.add(operation.result)
        return f"const word {operation.result} = {text};"
    return f"const real {operation.result} = {text};"


def _writer(primitive: str, place: int) -> Callable[[Value, set[str]], str]:
    is_truth = primitive in ("and", "or", "not") or (primitive == "where" and place == 0)
    return truth if is_truth else number
