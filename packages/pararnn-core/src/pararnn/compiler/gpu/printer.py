"""Prints expressions as lines of Triton.

The lines work on tensors of any shapes that broadcast, in the precision `CARRY`, a `tl.constexpr` that the kernel around them has; they call the
device functions of `pararnn.compiler.gpu.functions`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pararnn.compiler.primitives import PRIMITIVES
from pararnn.compiler.program import Expression, Operation, Value

# Where an operand is a truth value or a number as it comes, and where a constant must be given the precision of the others.
TABLE = {
    # Triton's minus takes the number from zero, which costs an addition; a product with -1 costs nothing.
    "neg": "{0} * -1.0",
    "abs": "tl.abs({0})",
    "exp": "exp({0})",
    "expm1": "expm1({0})",
    "log": "tl.log({0})",
    "log1p": "log1p({0})",
    "sqrt": "root({0})",
    "rsqrt": "tl.rsqrt({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "tanh": "tanh({0})",
    "sigmoid": "sigmoid({0})",
    "softplus": "softplus({0})",
    "erf": "tl.erf({0})",
    "floor": "tl.floor({0})",
    "sign": "sign({0}).to(CARRY)",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "pow": "power({0}, {1})",
    "minimum": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "maximum": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "not": "{0} == 0",
    "where": "tl.where({0}, {1}, {2})",
}
# What sums with a product in them become. Which are fused is said here and not left to a compiler, so that all kernels round a step alike.
FUSED = {"fma": "tl.fma({0}, {1}, {2})", "fnma": "tl.fma({0} * -1.0, {1}, {2})", "fms": "tl.fma({0}, {1}, {2} * -1.0)"}
# Between a constant and a tensor these work in the precision of the tensor.
PLAIN = frozenset({"add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge"})
LOGICAL = frozenset({"and", "or", "not"})


def lines(expression: Expression, names: Mapping[str, str], prefix: str, indent: int) -> tuple[list[str], tuple[str, ...]]:
    """`expression` as lines that begin after `indent` spaces, and what its outputs are called after them.

    `names` says what the inputs are called in the kernel; names of new values begin with `prefix`. An output that is constant, or does not depend on
    all inputs, has a shape of its own: broadcast it where one is needed.
    """
    known = dict(names)
    truths: set[str] = set()
    products = {operation.result: operation for operation in expression if operation.primitive == "mul"}
    fused = [_fused(operation, products) for operation in expression]
    wanted = {value for operation, one in zip(expression, fused, strict=True) for value in (one or operation).arguments} | set(expression.outputs)
    result = []
    for operation, one in zip(expression, fused, strict=True):
        if operation.result in products and operation.result not in wanted:
            continue
        called = f"{prefix}{operation.result}"
        result.append(f"{' ' * indent}{called} = {_text(one or operation, known, truths)}")
        known[operation.result] = called
        if PRIMITIVES[operation.primitive].is_truth:
            truths.add(operation.result)
    return result, tuple(_number(value, known, truths, plain=False) for value in expression.outputs)


def _fused(operation: Operation, products: Mapping[str, Operation]) -> Operation | None:
    """A sum with a product in it, as one operation that rounds once."""
    if operation.primitive not in ("add", "sub"):
        return None
    left, right = operation.arguments
    if isinstance(right, str) and right in products:
        return Operation(operation.result, "fma" if operation.primitive == "add" else "fnma", (*products[right].arguments, left))
    if isinstance(left, str) and left in products:
        return Operation(operation.result, "fma" if operation.primitive == "add" else "fms", (*products[left].arguments, right))
    return None


def _text(operation: Operation, known: Mapping[str, str], truths: set[str]) -> str:
    constants = sum(isinstance(argument, float | int) for argument in operation.arguments)
    plain = operation.primitive in PLAIN and constants < len(operation.arguments)
    texts = []
    for index, argument in enumerate(operation.arguments):
        if operation.primitive in LOGICAL or (operation.primitive == "where" and index == 0):
            texts.append(_truth(argument, known, truths))
        else:
            texts.append(_number(argument, known, truths, plain=plain))
    return (TABLE | FUSED)[operation.primitive].format(*texts)


def _number(value: Value, known: Mapping[str, str], truths: set[str], *, plain: bool) -> str:
    if isinstance(value, str):
        return f"{known[value]}.to(CARRY)" if value in truths else known[value]
    text = constant(value)
    return text if plain else f"tl.full((), {text}, CARRY)"


def _truth(value: Value, known: Mapping[str, str], truths: set[str]) -> str:
    if isinstance(value, str):
        return known[value] if value in truths else f"({known[value]} != 0)"
    return f"tl.full((), {bool(value)}, tl.int1)"


def constant(value: float) -> str:
    """A number as Triton reads it; negative ones in parentheses."""
    if not math.isfinite(value):
        return f'float("{value}")'
    return f"({float(value)!r})" if math.copysign(1.0, value) < 0 else repr(float(value))
