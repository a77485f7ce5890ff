"""Tensors that a function reads from its surroundings and that the caller named: others in their place, for one evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode


class _Substituted(TorchFunctionMode):
    """Every operation of torch gets the substitutes where it was given the named tensors.

    Differentiating by the tensors themselves would run their hooks in every step, and count one twice that another was computed from.
    """

    def __init__(self, substitutes: Mapping[int, Tensor]) -> None:
        super().__init__()
        self._substitutes = substitutes

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return func(*(self._in(value) for value in args), **{name: self._in(value) for name, value in (kwargs or {}).items()})

    def _in(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._substitutes.get(id(value), value)
        if type(value) in (tuple, list):
            return type(value)(self._in(part) for part in value)
        return value


def substituted(named: Sequence[Tensor], substitutes: Sequence[Tensor | None]) -> AbstractContextManager[Any]:
    """A context in which operations see `substitutes` instead of the tensors `named`, wherever a function has these from."""
    if not named:
        return nullcontext()
    return _Substituted({id(tensor): other for tensor, other in zip(named, substitutes, strict=True) if other is not None})
