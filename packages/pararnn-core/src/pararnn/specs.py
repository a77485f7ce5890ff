"""The records that plugins return from hooks.

A record names things; it never holds them. Targets are `"module:object"` strings, imported when first used, so that listing
what is installed costs no `import torch`.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from typing import Any

from pararnn.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What every record has: a name, where the object lives, and one line for a table."""

    name: str
    target: str
    summary: str

    def __post_init__(self) -> None:
        if not self.name or ":" in self.name or self.name != "".join(self.name.split()):
            raise ConfigError(f"{type(self).__name__} has the name {self.name!r}; a name is not empty and has neither spaces nor a colon")
        for field in ("target", "example", "reasons", "probe"):
            value = getattr(self, field, "module:object")
            left_out = value == "" and getattr(type(self), field, None) == ""
            if not left_out and not (isinstance(value, str) and all(value.partition(":")[::2])):
                raise ConfigError(f"{type(self).__name__} {self.name!r} has {field}={value!r}; write 'module:object', imported when first used")

    def load(self) -> Any:
        """Import and return the object behind `target`."""
        return pkgutil.resolve_name(self.target)


@dataclass(frozen=True, kw_only=True)
class CellSpec(Spec):
    """A recurrent cell (a class following `pararnn.cell.Cell`), or a module built around one.

    `example` names a callable `(batch, length, *, seed) -> (cell, x)` giving a small float64 cell and inputs of shape
    `(batch, length, input)` that suit it; `pararnn verify`, `pararnn bench` and the conformance kit run on it.
    """

    example: str

    def load_example(self) -> Any:
        """Import and return the example builder."""
        return pkgutil.resolve_name(self.example)


@dataclass(frozen=True, kw_only=True)
class StructureSpec(Spec):
    """A family of linear maps closed under composition (a subclass of `pararnn.structures.Structure`).

    `example` names a callable `(lead, state_size, *, seed, dtype) -> Structure` giving random members, for the laws; the
    conformance kit asks for `state_size=12`, in float64 and complex128.
    """

    example: str

    def load_example(self) -> Any:
        """Import and return the example builder."""
        return pkgutil.resolve_name(self.example)


@dataclass(frozen=True, kw_only=True)
class OpSpec(Spec):
    """An operation that several backends can serve, such as `scan/diagonal`; `target` is its plain PyTorch reference.

    `dtype` is what it is usually computed in, as torch names it; `pararnn doctor` asks backends about it. `example`, where it is given, names a
    callable `(seed, *, device, dtype) -> [(request, args, kwargs), ...]`: a few small calls, a typical one first, each with the
    `pararnn.selection.Request` that its caller makes where `"auto"` is to choose. The conformance kit holds the results and gradients of every
    backend to those of `target`, in every precision of the kind of `dtype`; an empty list leaves one out. `scan/...` and `solve` have checks of
    their own instead.
    """

    dtype: str = "float32"
    example: str = ""


@dataclass(frozen=True, kw_only=True)
class BackendSpec(Spec):
    """One implementation of an operation.

    `reasons` names a callable taking a `pararnn.selection.Request` and returning a tuple with every obstacle that keeps this
    backend from serving it; an empty tuple means that it can. `priority` orders the ones that can: `auto` takes the highest.
    `probe` names a callable without arguments that exercises the backend once; `pararnn doctor` runs it in a child process. It
    returns `None`, or a tuple of obstacles like `reasons` where it cannot run on this machine; any exception but ImportError is a failure.
    """

    op: str
    reasons: str
    probe: str
    priority: int = 0

    def load_reasons(self) -> Any:
        """Import and return the function that lists obstacles."""
        return pkgutil.resolve_name(self.reasons)


@dataclass(frozen=True, kw_only=True)
class LearnerSpec(Spec):
    """A learning rule that trains a cell as the data streams by, without backpropagation through time."""


@dataclass(frozen=True, kw_only=True)
class CommandSpec(Spec):
    """A subcommand of `pararnn`: `target` is a click command."""
