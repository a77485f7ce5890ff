"""Threads that share a field: any number may read it, and one alone may put other tensors in the place of its own for a while."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import nn

from pararnn.errors import DifferentiationError

P = ParamSpec("P")
Result = TypeVar("Result")
F = TypeVar("F")
Users = dict[int, Counter[int]]

_guard = threading.Lock()
_readers: Users = {}
_writers: Users = {}


def while_reading(function: Callable[Concatenate[F, P], Result]) -> Callable[Concatenate[F, P], Result]:
    """`function`, which reads the tensors of the field that is its first argument.

    Its call raises `DifferentiationError` where another thread has put other tensors in their place, since it would see the variables of that.
    """

    @functools.wraps(function)
    def reading(field: F, /, *arguments: P.args, **named: P.kwargs) -> Result:
        if torch.compiler.is_compiling():
            return function(field, *arguments, **named)
        with _entered(_readers, field, refused=(_writers,)):
            return function(field, *arguments, **named)

    return reading


@contextlib.contextmanager
def replacing(field: object) -> Iterator[None]:
    """While tensors of `field` are replaced.

    Raises:
        DifferentiationError: another thread reads or replaces them.
    """
    with _entered(_writers, field, refused=(_readers, _writers)):
        yield


@contextlib.contextmanager
def _entered(users: Users, field: object, *, refused: tuple[Users, ...]) -> Iterator[None]:
    # Every module counts by itself: a field may be wrapped for one walk, and two fields may share a path.
    keys = [id(module) for module in field.modules()] if isinstance(field, nn.Module) else [id(field)]
    thread = threading.get_ident()
    with _guard:
        if any(other != thread for table in refused for key in keys for other in table.get(key, ())):
            raise DifferentiationError(
                f"two threads integrate one {type(field).__name__} at once, and one of them needs a gradient for which the field holds other tensors "
                "for a while; give each thread a copy of the field (copy.deepcopy), or use gradient='backprop' or 'checkpoint'"
            )
        for key in keys:
            users.setdefault(key, Counter())[thread] += 1
    try:
        yield
    finally:
        with _guard:
            for key in keys:
                count = users[key]
                count[thread] -= 1
                if not count[thread]:
                    del count[thread]
                if not count:
                    del users[key]
