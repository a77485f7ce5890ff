"""What can be verified by name: the cells, structures and backends of plugins, each with its checks."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from pararnn.conformance.backends import backend_checks
from pararnn.conformance.cells import cell_checks
from pararnn.conformance.report import BoundCheck, CheckResult, ConformanceReport, run_checks
from pararnn.conformance.structures import structure_checks
from pararnn.errors import ConformanceError, UnknownNameError
from pararnn.examples import build_example
from pararnn.provenance import Entry, Provenance
from pararnn.registry import installed
from pararnn.specs import BackendSpec, CellSpec, StructureSpec

Verifiable: TypeAlias = CellSpec | StructureSpec | BackendSpec
ROWS, TIME = 3, 9
# The record of a plugin that is tested from its source, before it is installed.
UNINSTALLED = Provenance(distribution="this plugin", version="(not installed)", plugin="")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A cell, structure or backend with the name by which `pararnn verify` knows it."""

    label: str
    entry: Entry[Verifiable]

    @property
    def kind(self) -> str:
        """`"cell"`, `"structure"` or `"backend"`."""
        return {CellSpec: "cell", StructureSpec: "structure", BackendSpec: "backend"}[type(self.entry.spec)]

    def __str__(self) -> str:
        return f"{self.kind} {self.label} of {self.entry.provenance}"

    def checks(self, *, seed: int = 0) -> Mapping[str, BoundCheck]:
        """Every check by name, each making its own example from `seed`."""
        spec, entry = self.entry.spec, self.entry
        if isinstance(spec, CellSpec):
            example: dict[str, BoundCheck] = {"example": functools.partial(check_example, entry, seed)}  # type: ignore[arg-type]
            return example | {name: functools.partial(_on_cell, entry, seed, check) for name, check in cell_checks().items()}
        if isinstance(spec, StructureSpec):
            return {name: functools.partial(_on_structure, entry, check) for name, check in structure_checks().items()}
        return {name: functools.partial(check, entry) for name, check in backend_checks(spec.op).items()}  # type: ignore[arg-type]

    def verify(self, *, seed: int = 0, on_result: Callable[[CheckResult], None] | None = None) -> ConformanceReport:
        """Run every check, each from the random state `seed`; `on_result` is called with each result as soon as it is there."""
        return run_checks(str(self), self.checks(seed=seed), seed=seed, on_result=on_result)


def verify(name: str, *, seed: int = 0) -> tuple[ConformanceReport, ...]:
    """Verify what is installed under `name`, as `pararnn verify NAME` does; see `subjects_named`."""
    return tuple(subject.verify(seed=seed) for subject in subjects_named(name))


def subjects_named(name: str) -> tuple[Subject, ...]:
    """The cells and structures called `name`, the backend `op:name`, or everything installed for `"all"`.

    Raises:
        UnknownNameError: nothing installed has that name.
        AmbiguousNameError: several distributions offer it; ask for `distribution:name`.
    """
    if name == "all":
        return tuple(_all())
    registry = installed()
    found = [Subject(label=name, entry=catalogue[name]) for catalogue in (registry.cells, registry.structures) if name in catalogue]
    op, _, backend = name.partition(":")
    if backend and op in registry.backend_ops and backend in registry.backends(op):
        found.append(Subject(label=name, entry=registry.backends(op)[backend]))
    if not found:
        known = [subject.label for subject in _all()]
        close = difflib.get_close_matches(name, known, n=3)
        steps = ["give a cell, a structure, a backend as op:name, or all", f"close: {', '.join(map(repr, close))}" if close else ""]
        steps += [registry.unusable(), "`pararnn plugins` lists what is installed"]
        raise UnknownNameError(
            f"nothing installed is verified under the name {name!r}; {'; '.join(step for step in steps if step)}", name=name, known=known
        )
    return tuple(found)


def subject_of(spec: Verifiable) -> Subject:
    """The subject of a plugin's record, installed or not."""
    label = f"{spec.op}:{spec.name}" if isinstance(spec, BackendSpec) else spec.name
    return Subject(label=label, entry=Entry(spec, UNINSTALLED))


def check_example(entry: Entry[CellSpec], seed: int) -> None:
    """The example gives a cell of the registered class and inputs `(batch, time, input)`, in float64, the same for the same seed."""
    cell, x = _example(entry, seed)
    wanted = entry.load()
    # A record may name a module around a cell; then the example gives the cell inside.
    if isinstance(wanted, type) and hasattr(wanted, "step") and not isinstance(cell, wanted):
        raise ConformanceError(f"the example gives a {type(cell).__name__}, but the record names {entry.spec.target}; give an instance of that")
    if not isinstance(x, Tensor) or x.ndim != 3 or tuple(x.shape[:2]) != (ROWS, TIME):
        found = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ConformanceError(f"the example for batch {ROWS} and length {TIME} gives inputs {found}; they are (batch, length, input)")
    weights = cell.state_dict() if isinstance(cell, nn.Module) else {}
    for name, tensor in (("x", x), *weights.items()):
        if tensor.is_floating_point() and tensor.dtype != torch.float64:
            raise ConformanceError(
                f"{name} of the example is {tensor.dtype}; give cell and inputs in float64, where a fault can be told from rounding"
            )
    again, same = _example(entry, seed)
    if not torch.equal(x, same) or any(not torch.equal(tensor, again.state_dict()[name]) for name, tensor in weights.items()):
        raise ConformanceError("the example gives other numbers for the same seed; draw them all from a generator, or under torch.random.fork_rng")


def _all() -> Iterator[Subject]:
    registry = installed()
    for catalogue in (registry.cells, registry.structures):
        for label, entry in catalogue.items():
            yield Subject(label=label, entry=entry)
    for op in registry.backend_ops:
        for label, backend in registry.backends(op).items():
            yield Subject(label=f"{op}:{label}", entry=backend)


def _example(entry: Entry[CellSpec], seed: int) -> tuple[Any, Any]:
    return build_example(entry, ROWS, TIME, seed=seed)


def _on_cell(entry: Entry[Any], seed: int, check: Callable[[Any, Tensor], str | None]) -> str | None:
    return check(*_example(entry, seed))


def _on_structure(entry: Entry[Any], check: Callable[..., str | None]) -> str | None:
    return check(entry.load(), entry.resolve(entry.spec.example))
