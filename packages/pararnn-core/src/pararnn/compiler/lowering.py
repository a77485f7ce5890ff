"""What PyTorch's pointwise operations are in primitives; `activations` adds those of neural networks.

Each function takes the builder and the arguments of the operation, tensors as numbers. In-place forms (`add_`) use the entry of the plain one.
What is missing here and has a decomposition in PyTorch is decomposed by that; the rest cannot be compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from pararnn.compiler.numbers import Builder, Number
from pararnn.compiler.primitives import PRIMITIVES

Lowering: TypeAlias = Callable[..., Number]

LOWERINGS: dict[str, Lowering] = {}


def lowers(*names: str) -> Callable[[Lowering], Lowering]:
    """Enter the decorated function for the operations of these names."""

    def register(lowering: Lowering) -> Lowering:
        LOWERINGS.update(dict.fromkeys(names, lowering))
        return lowering

    return register


def _primitive(name: str) -> Lowering:
    return lambda b, *arguments: b.emit(name, *arguments)


# Those of PyTorch's name and meaning.
SAME = set(PRIMITIVES) - {"add", "sub", "mul", "div", "pow", "softplus", "and", "or", "not", "where"}
LOWERINGS |= {name: _primitive(name) for name in SAME}
LOWERINGS |= {"sgn": LOWERINGS["sign"], "special_expit": LOWERINGS["sigmoid"], "where": lambda b, condition, yes, no: b.select(condition, yes, no)}


def scaled(b: Builder, factor: Any, x: Any) -> Any:
    """`factor * x`, without a multiplication by 1."""
    return x if factor == 1 else b.mul(x, factor)


@lowers("add")
def _add(b: Builder, x: Any, y: Any, alpha: float = 1) -> Number:
    return b.add(x, scaled(b, alpha, y))


@lowers("sub")
def _sub(b: Builder, x: Any, y: Any, alpha: float = 1) -> Number:
    return b.sub(x, scaled(b, alpha, y))


@lowers("rsub")
def _rsub(b: Builder, x: Any, y: Any, alpha: float = 1) -> Number:
    return b.sub(y, scaled(b, alpha, x))


@lowers("mul")
def _mul(b: Builder, x: Any, y: Any) -> Number:
    return b.mul(x, y)


@lowers("div")
def _div(b: Builder, x: Any, y: Any) -> Number:
    return b.div(x, y)


@lowers("reciprocal")
def _reciprocal(b: Builder, x: Any) -> Number:
    return b.div(1.0, x)


@lowers("square")
def _square(b: Builder, x: Any) -> Number:
    return b.mul(x, x)


@lowers("pow")
def _pow(b: Builder, x: Any, exponent: Any) -> Number:
    known = exponent.value if isinstance(exponent, Number) and exponent.is_constant else exponent
    power = POWERS.get(known) if isinstance(known, (int, float)) else None
    return b.pow(x, exponent) if power is None else power(b, x)


def cube(b: Builder, x: Any) -> Number:
    """The third power."""
    return b.mul(b.mul(x, x), x)


def _fourth(b: Builder, x: Any) -> Number:
    square = b.mul(x, x)
    return b.mul(square, square)


POWERS: dict[float, Lowering] = {
    0.0: lambda b, x: b.add(0.0, 1.0),
    1.0: lambda b, x: x,
    2.0: _square,
    3.0: cube,
    4.0: _fourth,
    0.5: LOWERINGS["sqrt"],
    -0.5: LOWERINGS["rsqrt"],
    -1.0: _reciprocal,
    -2.0: lambda b, x: b.div(1.0, b.mul(x, x)),
}


@lowers("addcmul")
def _addcmul(b: Builder, x: Any, first: Any, second: Any, value: float = 1) -> Number:
    return b.add(x, scaled(b, value, b.mul(first, second)))


@lowers("addcdiv")
def _addcdiv(b: Builder, x: Any, first: Any, second: Any, value: float = 1) -> Number:
    return b.add(x, scaled(b, value, b.div(first, second)))


@lowers("lerp")
def _lerp(b: Builder, start: Any, end: Any, weight: Any) -> Number:
    # Exact at both ends, and what does not see the state stays out of the loop.
    return b.add(b.mul(b.sub(1.0, weight), start), b.mul(weight, end))


@lowers("clamp")
def clamp(b: Builder, x: Any, min: Any = None, max: Any = None) -> Number:
    """`x` within bounds that may be missing."""
    bounded = x if min is None else b.maximum(x, min)
    return bounded if max is None else b.minimum(bounded, max)


@lowers("clamp_min")
def _clamp_min(b: Builder, x: Any, bound: Any) -> Number:
    return b.maximum(x, bound)


@lowers("clamp_max")
def _clamp_max(b: Builder, x: Any, bound: Any) -> Number:
    return b.minimum(x, bound)


@lowers("masked_fill")
def _masked_fill(b: Builder, x: Any, mask: Any, value: Any) -> Number:
    return b.select(mask, value, x)


@lowers("logical_not", "bitwise_not")
def _not(b: Builder, x: Any) -> Number:
    return b.not_(x)


@lowers("logical_and", "bitwise_and")
def _and(b: Builder, x: Any, y: Any) -> Number:
    return b.and_(x, y)


@lowers("logical_or", "bitwise_or")
def _or(b: Builder, x: Any, y: Any) -> Number:
    return b.or_(x, y)


@lowers("logical_xor", "bitwise_xor")
def _xor(b: Builder, x: Any, y: Any) -> Number:
    return b.and_(b.or_(x, y), b.not_(b.and_(x, y)))


@lowers("isnan")
def _isnan(b: Builder, x: Any) -> Number:
    return b.ne(x, x)


@lowers("isinf")
def _isinf(b: Builder, x: Any) -> Number:
    return b.eq(b.abs(x), math.inf)


@lowers("isposinf")
def _isposinf(b: Builder, x: Any) -> Number:
    return b.eq(x, math.inf)


@lowers("isneginf")
def _isneginf(b: Builder, x: Any) -> Number:
    return b.eq(x, -math.inf)


@lowers("ceil")
def _ceil(b: Builder, x: Any) -> Number:
    return b.neg(b.floor(b.neg(x)))


@lowers("trunc", "fix")
def _trunc(b: Builder, x: Any) -> Number:
    return b.mul(b.sign(x), b.floor(b.abs(x)))


@lowers("frac")
def _frac(b: Builder, x: Any) -> Number:
    return b.sub(x, _trunc(b, x))


@lowers("round")
def _round(b: Builder, x: Any, decimals: int = 0) -> Number:
    if decimals:
        raise NotImplementedError("it rounds to decimals")
    low = b.floor(x)
    rest = b.sub(x, low)
    even = b.mul(2.0, b.floor(b.mul(0.5, b.add(low, 1.0))))
    return b.where(b.lt(rest, 0.5), low, b.where(b.gt(rest, 0.5), b.add(low, 1.0), even))


@lowers("exp2")
def _exp2(b: Builder, x: Any) -> Number:
    return b.exp(b.mul(x, math.log(2)))


@lowers("log2")
def _log2(b: Builder, x: Any) -> Number:
    return b.mul(b.log(x), 1 / math.log(2))


@lowers("log10")
def _log10(b: Builder, x: Any) -> Number:
    return b.mul(b.log(x), 1 / math.log(10))


@lowers("tan")
def _tan(b: Builder, x: Any) -> Number:
    return b.div(b.sin(x), b.cos(x))


@lowers("sinh")
def _sinh(b: Builder, x: Any) -> Number:
    return b.mul(0.5, b.sub(b.expm1(x), b.expm1(b.neg(x))))


@lowers("cosh")
def _cosh(b: Builder, x: Any) -> Number:
    return b.mul(0.5, b.add(b.exp(x), b.exp(b.neg(x))))
