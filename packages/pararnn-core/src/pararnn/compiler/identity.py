"""What decides how a step is compiled, as something to compare: the same identity, the same program.

The numbers of parameters are not part of it, nor which tensors they are: they are operands, fetched by name at each solve.
"""

from __future__ import annotations

import types
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from pararnn.compiler.entering import functions_entered
from pararnn.compiler.freezing import Facts
from pararnn.compiler.reading import Reading, classes_of
from pararnn.compiler.watching import UnwatchableError, Watch

if TYPE_CHECKING:
    from pararnn.solver.problem import Problem


class StepIdentity:
    """The step of a problem: its code and everything plain that the code reads, and the form of its drive.

    Attributes:
        facts: what is compared.
        is_sure: whether equal facts mean an equal step; where an attribute cannot be compared, no other identity is equal to this one.
    """

    __slots__ = ("__weakref__", "_hash", "_held", "_reading", "facts", "is_sure")

    def __init__(self, reading: Reading, found: Facts) -> None:
        self.facts = (reading.content, *found.facts)
        self.is_sure = not found.is_unsure
        self._hash = hash(self.facts)
        # Addresses are among the facts: what lives there must stay.
        self._reading, self._held = reading, tuple(found.held)

    @staticmethod
    def of(problem: Problem) -> StepIdentity:
        """The identity of the step of `problem`; a step that is new, or has changed, is run once without data to see what it reads."""
        anchor, code = _anchor(problem.step)
        known = _last.get(anchor)
        if known is not None and known.code is code and known.is_right(problem):
            return known.identity
        alike = _alike.get(code)
        if alike is not known and alike is not None and alike.is_right(problem):
            _last[anchor] = alike
            return alike.identity
        return _learned(problem, anchor, code)

    def watch(self, step: Any) -> Watch | None:
        """What tells quickly whether `step`, a method that has this identity, keeps it; None where nothing can."""
        if not self.is_sure or type(step) is not types.MethodType or type(step.__func__) is not types.FunctionType:
            return None
        try:
            cell: Any = step.__self__
            if isinstance(cell, type):
                return None
            return Watch(cell, step.__func__, self._reading)
        except UnwatchableError:
            return None

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, StepIdentity) and self._hash == other._hash and self.facts == other.facts)

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, eq=False)
class _Known:
    """What was found of a step: it is the same step as long as its reading gives the same facts."""

    code: Any
    reading: Reading
    facts: list[Any]
    identity: StepIdentity

    def is_right(self, problem: Problem) -> bool:
        return _facts(problem, self.reading).facts == self.facts and self.reading.is_current()


# What was found last for each module, and for each code: other layers of a model are mostly like the last.
_last: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()
_alike: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()


def _anchor(step: Any) -> tuple[Any, Any]:
    """What lives as long as the step does and is the same at each solve, and the code."""
    function = getattr(step, "__func__", step)
    code = getattr(function, "__code__", type(function))
    owner = getattr(step, "__self__", None)
    return (owner if isinstance(owner, nn.Module) else code), code


def _learned(problem: Problem, anchor: Any, code: Any) -> StepIdentity:
    entered = functions_entered(problem.step, problem.initial, problem.drive)
    reading = Reading(entered, ())
    found = _facts(problem, reading)
    for _ in range(8):
        # Members of these classes can lead to objects of further ones.
        classes = classes_of(found)
        reading = Reading(entered, classes)
        found = _facts(problem, reading)
        if classes_of(found) == classes:
            break
    else:
        found.unsure()
    identity = StepIdentity(reading, found)
    _last[anchor] = _alike[code] = _Known(code, reading, found.facts, identity)
    return identity


def _facts(problem: Problem, reading: Reading) -> Facts:
    found = Facts(reading.names)
    step, drive, initial = problem.step, problem.drive, problem.initial
    if isinstance(step, types.MethodType) and isinstance(step.__self__, nn.Module):
        found.add(step.__func__)
        found.module(step.__self__)
    elif isinstance(step, types.FunctionType):
        found.function(step)
    else:
        found.add(step)
    reading.changing(found)
    found.everywhere()
    facts = found.facts
    facts += (initial.shape[-1], initial.dtype, initial.device, torch.get_default_dtype(), parametrize._cache_enabled, type(drive))
    for leaf in (drive,) if isinstance(drive, Tensor) else drive:
        if leaf is None:
            facts.append(None)
            continue
        shape = leaf.shape
        facts += (leaf.dtype, leaf.device, len(shape), shape[2:] if len(shape) >= 3 else shape)
    return found
