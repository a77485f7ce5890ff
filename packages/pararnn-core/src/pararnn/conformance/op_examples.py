"""Small calls of operations that are neither scans nor solves, from the examples of their records."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pararnn.errors import ConformanceError, sentence
from pararnn.provenance import Entry
from pararnn.registry import installed
from pararnn.selection import Request
from pararnn.specs import OpSpec

REAL = ("float64", "float32", "bfloat16", "float16")
COMPLEX = ("complex128", "complex64")
Key: TypeAlias = int | str


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of an operation: what is asked for, the arguments, and the definition of its result."""

    request: Request
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    definition: Callable[..., Any]

    def tensors(self) -> dict[Key, Tensor]:
        """The arguments that are tensors, by place or keyword."""
        arguments: list[tuple[Key, Any]] = [*enumerate(self.args), *self.kwargs.items()]
        return {key: value for key, value in arguments if isinstance(value, Tensor)}

    def with_tensors(self, tensors: Mapping[Key, Tensor]) -> Call:
        """The same call with some tensors replaced."""
        args = tuple(tensors.get(place, value) for place, value in enumerate(self.args))
        return replace(self, args=args, kwargs={name: tensors.get(name, value) for name, value in self.kwargs.items()})

    def map(self, function: Callable[[Tensor], Tensor]) -> Call:
        """The same call with `function` of every tensor."""
        return self.with_tensors({key: function(tensor) for key, tensor in self.tensors().items()})

    def name(self, key: Key) -> str:
        """What the definition calls an argument."""
        if isinstance(key, str):
            return key
        try:
            parameters = list(inspect.signature(self.definition).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        named = key < len(parameters) and parameters[key].kind is not inspect.Parameter.VAR_POSITIONAL
        return parameters[key].name if named else f"argument {key}"


def offers(op: str) -> tuple[Entry[OpSpec], ...]:
    """The records of `op`; two distributions may offer one each."""
    return tuple(entry for entry in installed().ops.values() if entry.name == op)


def with_examples(op: str) -> tuple[Entry[OpSpec], ...]:
    """The records of `op` that have an example."""
    return tuple(entry for entry in offers(op) if entry.spec.example)


def precisions(entry: Entry[OpSpec]) -> tuple[str, ...]:
    """The dtypes of the kind, real or complex, of the one that the record names, the widest first."""
    for kind in (REAL, COMPLEX):
        if entry.spec.dtype in kind:
            return kind
    known = ", ".join((*REAL, *COMPLEX))
    raise ConformanceError(f"the record of {entry.name} of {entry.provenance} has dtype={entry.spec.dtype!r}; examples are made in {known}")


def calls(entry: Entry[OpSpec], dtype: str, *, device: str = "cpu", seed: int = 0) -> tuple[Call, ...]:
    """The calls that the example of a record gives; none where it leaves `dtype` out.

    Raises:
        ConformanceError: it fails, or gives something else.
    """
    words = f"the example {entry.spec.example} of {entry.name} for {dtype} on {device}"
    takes = "it takes (seed, *, device, dtype) and gives a list of (request, args, kwargs)"
    try:
        found = list(entry.resolve(entry.spec.example)(seed, device=device, dtype=getattr(torch, dtype)))
    except (TypeError, ValueError) as error:
        raise ConformanceError(f"{words} fails ({sentence(error)}); {takes}") from error
    return tuple(_checked(found, entry, Request.of(entry.name, device=device, dtype=dtype), f"{words} gives", takes))


def _checked(found: list[Any], entry: Entry[OpSpec], asked: Request, gives: str, takes: str) -> Iterator[Call]:
    for one in found:
        match one:
            case (Request() as request, tuple() as args, dict() as kwargs):
                pass
            case _:
                raise ConformanceError(f"{gives} {_form(one)}; {takes}")
        if (request.op, request.device, request.dtype) != (asked.op, asked.device, asked.dtype):
            raise ConformanceError(f"{gives} the request [{request}]; its operation, device and dtype are those that were asked for")
        yield Call(request=request, args=args, kwargs=kwargs, definition=entry.load())


def _form(one: Any) -> str:
    return f"({', '.join(type(part).__name__ for part in one)})" if isinstance(one, tuple) else type(one).__name__
