"""What tracing knows about a tensor: the number of one row and one channel that it stands for, and what that number has been summed over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from pararnn.compiler.primitives import PRIMITIVES
from pararnn.compiler.program import Operation, Value

# In these, one argument may be a sum that is still to be made: the operation on the sum is the sum of the operation.
LINEAR = {"neg": (0,), "mul": (0, 1), "div": (0,), "add": (0, 1), "sub": (0, 1), "where": (1, 2)}


@dataclass(frozen=True)
class Number:
    """One number of a tensor.

    Attributes:
        value: its name in the list of operations, or a constant; None where it cannot be computed, which an obstacle tells.
        is_truth: whether it is a truth value.
        axes: along which of `"rows"` and `"channels"` it can differ.
        summed: the axes, of `"rows"` and `"channels"`, along which the tensor holds the sum of such numbers; the engine makes it at last.
        origin: what made the sum, for a message.
    """

    value: Value | None
    is_truth: bool = False
    axes: frozenset[str] = frozenset()
    summed: frozenset[str] = frozenset()
    origin: str = ""

    @property
    def is_constant(self) -> bool:
        """Whether it is known already."""
        return isinstance(self.value, float) and not self.summed

    @property
    def is_zero(self) -> bool:
        """Whether it is the constant zero, of which every sum is zero."""
        return isinstance(self.value, float) and self.value == 0


BROKEN = Number(None)


def constant(value: float) -> Number:
    """The number `value`; of a truth value, 1.0 or 0.0."""
    return Number(float(value), is_truth=isinstance(value, bool))


def held(value: float, dtype: torch.dtype) -> float:
    """`value` as a number of `dtype` has it, which is no complex one."""
    with _disable_current_modes():
        return float(torch.tensor(value, dtype=torch.float64, device="cpu").to(dtype))


class Builder:
    """Writes down operations, one line each; `self.exp(x)`, `self.mul(x, y)` and so on for every primitive, on numbers and constants.

    Args:
        obstacle: told of what cannot be written down.
        digits: what the numbers can tell apart, as `torch.finfo(...).eps` does.
    """

    def __init__(self, obstacle: Callable[[str], None], digits: float) -> None:
        self.digits = digits
        self.operations: list[Operation] = []
        self._obstacle = obstacle

    def __getattr__(self, primitive: str) -> Callable[..., Number]:
        if primitive not in PRIMITIVES:
            raise AttributeError(f"there is no primitive {primitive!r}; pararnn.compiler.primitives lists them")
        return lambda *arguments: self.emit(primitive, *arguments)

    def select(self, condition: Any, yes: Any, no: Any) -> Number:
        """`yes` where `condition`, else `no`; both truth values, or both numbers."""
        first, second = _number(yes), _number(no)
        if first.is_truth and second.is_truth:
            return self.or_(self.and_(condition, first), self.and_(self.not_(condition), second))
        return self.emit("where", condition, first, second)

    def and_(self, *arguments: Any) -> Number:
        """Both."""
        return self.emit("and", *arguments)

    def or_(self, *arguments: Any) -> Number:
        """Either."""
        return self.emit("or", *arguments)

    def not_(self, argument: Any) -> Number:
        """The opposite."""
        return self.emit("not", argument)

    def emit(self, primitive: str, *arguments: Any) -> Number:
        """The result of a primitive, as a new line."""
        numbers = [self._as_wanted(primitive, place, _number(argument)) for place, argument in enumerate(arguments)]
        if any(number.value is None for number in numbers):
            return BROKEN
        summed = self._summed(primitive, numbers)
        if summed is None:
            return BROKEN
        values = tuple(number.value for number in numbers if number.value is not None)
        result = f"v{len(self.operations)}"
        self.operations.append(Operation(result, primitive, values))
        origin = next((number.origin for number in numbers if number.origin), "")
        axes = frozenset[str]().union(*(number.axes for number in numbers)) - summed
        return Number(result, is_truth=PRIMITIVES[primitive].is_truth, axes=axes, summed=summed, origin=origin)

    def as_number(self, number: Number) -> Number:
        """A truth value as 1.0 or 0.0; a number as it is."""
        if not number.is_truth or number.value is None:
            return number
        return replace(number, is_truth=False) if isinstance(number.value, float) else self.emit("where", number, 1.0, 0.0)

    def as_truth(self, number: Number) -> Number:
        """Whether a number is not zero; a truth value as it is."""
        if number.is_truth or number.value is None:
            return number
        return Number(float(number.value != 0), is_truth=True) if number.is_constant else self.emit("ne", number, 0.0)

    def _as_wanted(self, primitive: str, place: int, number: Number) -> Number:
        wants_truth = primitive in ("and", "or", "not") or (primitive == "where" and place == 0)
        return self.as_truth(number) if wants_truth else self.as_number(number)

    def _summed(self, primitive: str, numbers: list[Number]) -> frozenset[str] | None:
        """What the result is summed over, None with an obstacle where the sum would have to be made before this operation."""
        sums = [number for number in numbers if number.summed]
        if not sums:
            return frozenset()
        places = LINEAR.get(primitive, ())
        at = [place for place, number in enumerate(numbers) if number.summed]
        alike = all(number.summed == sums[0].summed for number in sums)
        others = [numbers[place] for place in places if place not in at]
        fits = set(at) <= set(places) and alike and (len(sums) == 1 or primitive != "mul")
        if primitive in ("add", "sub", "where"):
            fits = fits and all(other.is_zero for other in others)
        # What differs along an axis cannot be drawn into a sum along it.
        fits = fits and not any(number.axes & sums[0].summed for number in numbers)
        if fits:
            return sums[0].summed
        self._obstacle(sums[0].origin)
        return None


def _number(argument: Any) -> Number:
    return argument if isinstance(argument, Number) else constant(argument)
