"""The checks of a backend that solves cells: of `solve`, or of an operation that a cell names in `solve_ops`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from pararnn.conformance.comparison import difference
from pararnn.conformance.placing import Place, place_of, reasons_of
from pararnn.conformance.samples import in_dtype, sized
from pararnn.errors import ConformanceError
from pararnn.provenance import Entry
from pararnn.registry import installed
from pararnn.selection import Request
from pararnn.solver.api import cell_problem, walk_problem
from pararnn.solver.asking import facts_of, facts_of_cell
from pararnn.solver.config import NewtonConfig
from pararnn.solver.problem import Problem
from pararnn.solver.result import SolveResult
from pararnn.specs import BackendSpec
from pararnn.structures.base import Structure
from pararnn.structures.dense import Dense
from pararnn.structures.diagonal import Diagonal

SEGMENTS = (3, 0, 7, 1)
Posing: TypeAlias = Callable[[int], tuple[nn.Module, Tensor]]


class Squashing(nn.Module):
    """`h[t] = tanh(W h[t-1] + x[t])`, channelwise or with all channels mixed; the plainest cell that needs iterations."""

    def __init__(self, size: int, structure: type[Structure]) -> None:
        super().__init__()
        self.state_size = size
        self.structure = structure
        weight = torch.randn(size, dtype=torch.float64) if structure is Diagonal else torch.randn(size, size, dtype=torch.float64) / size**0.5
        self.weight = nn.Parameter(0.8 * weight)

    def initial_state(self, batch: int) -> Tensor:
        return self.weight.new_zeros(batch, self.state_size)

    def drive(self, x: Tensor) -> Tensor:
        return x

    def step(self, state: Tensor, drive: Tensor) -> Tensor:
        mixed = self.weight * state if self.structure is Diagonal else state @ self.weight.mT
        return torch.tanh(mixed + drive)

    def readout(self, states: Tensor) -> Tensor:
        return states


@dataclass(frozen=True, kw_only=True)
class Posed:
    """A problem that a backend has to solve: `solve()` does; `words` tell which it is."""

    problem: Problem
    solve: Callable[[], SolveResult]
    words: str


def check_solve_states(backend: Entry[BackendSpec]) -> str | None:
    """States and final states are those of the walk, for no step, one and many, with an initial state and packed."""
    posed = _Problems(backend)
    for one in posed.served:
        with torch.no_grad():
            result, truth = one.solve(), walk_problem(one.problem)
        for what in ("states", "final"):
            if (how := difference(getattr(result, what), getattr(truth, what))) is not None:
                raise ConformanceError(f"{one.words}: {what} of the backend and of the walk differ {how}")
    return posed.reason


def check_solve_gradients(backend: Entry[BackendSpec]) -> str | None:
    """Gradients of the states by every parameter are those of the walk."""
    posed = _Problems(backend)
    for one in posed.served:
        cell = one.problem.cell
        weights = dict(cell.named_parameters()) if isinstance(cell, nn.Module) else {}
        if one.problem.length and weights:
            found, expected = _gradients(one.solve().states, weights), _gradients(walk_problem(one.problem).states, weights)
            for name in weights:
                if (how := difference(found[name], expected[name], "gradients")) is not None:
                    raise ConformanceError(f"{one.words}: the gradient of the backend by {name} and that of the walk differ {how}")
    return posed.reason


CHECKS: tuple[Callable[[Entry[BackendSpec]], str | None], ...] = (check_solve_states, check_solve_gradients)


class _Problems:
    """The problems of `op` that a backend serves. `reason`, once `served` is exhausted: why there was none, else None."""

    def __init__(self, backend: Entry[BackendSpec]) -> None:
        self.backend = backend
        self.reason: str | None = None

    @property
    def served(self) -> Iterator[Posed]:
        place = place_of(self.backend)
        if isinstance(place, str):
            self.reason = place
            return
        op = self.backend.spec.op
        self.reason = f"no installed cell names {op} in its solve_ops"
        obstacles: list[str] = []
        count = 0
        for posed, request in _posed(self.backend, place):
            # A cell that the backend does not claim to solve is no fault of it.
            if found := reasons_of(self.backend, request):
                obstacles += [obstacle for obstacle in found if obstacle not in obstacles]
                continue
            count += 1
            yield posed
        if count:
            self.reason = None
        elif obstacles:
            self.reason = f"backend {self.backend.name!r} serves none of the cells that there are: {'; '.join(obstacles)}"


def _posed(backend: Entry[BackendSpec], place: Place) -> Iterator[tuple[Posed, Request]]:
    """Every problem of the backend's operation, with the request that a user's call would make who names the backend."""
    config = NewtonConfig(interval="parallel", backend=backend.qualified_name)
    for name, pose in _cells(backend.spec.op):
        for length in (0, 1, 2, 7, 65):
            cell, x = pose(length)
            cell, x = in_dtype(cell, place.dtype).to(place.device), x.to(place.device, place.dtype)
            start = cell.initial_state(x.shape[0])  # type: ignore[operator]
            start = start + 0.1 * torch.randn_like(start)
            yield _one(backend, cell, x, config, f"{name}, T = {length}, {place}", h0=start)
        offsets = torch.tensor((0, *SEGMENTS)).cumsum(0)
        cell, x = pose(sum(SEGMENTS))
        cell, x = in_dtype(cell, place.dtype).to(place.device), x[:1].to(place.device, place.dtype)
        yield _one(backend, cell, x, config, f"{name}, packed, {place}", cu_seqlens=offsets)


def _one(backend: Entry[BackendSpec], cell: nn.Module, x: Tensor, config: NewtonConfig, words: str, **given: Any) -> tuple[Posed, Request]:
    implementation, op = backend.load(), backend.spec.op
    problem = cell_problem(cell, x, config, **given)
    if getattr(implementation, "takes_inputs", False):
        request = facts_of_cell(cell, x, config, packed="cu_seqlens" in given).request(op)
        asked = {"h0": None, "cu_seqlens": None, "guess": None, **given}
        return Posed(problem=problem, solve=lambda: implementation(cell, x, config, **asked), words=words), request
    # The request holds the problem weakly, and the record of it keeps it alive.
    return Posed(problem=problem, solve=lambda: implementation(problem, config), words=words), facts_of(problem, config).request(op)


def _cells(op: str) -> Iterator[tuple[str, Posing]]:
    """Cells that a backend of `op` has to solve: any for `solve`, else the installed ones that ask for it."""
    if op == "solve":
        for structure in (Diagonal, Dense):
            yield (
                f"tanh cell, {structure.__name__}",
                lambda length, structure=structure: (  # type: ignore[misc]
                    Squashing(6, structure),
                    torch.randn(3, length, 6, dtype=torch.float64),
                ),
            )
        return
    for name, entry in installed().cells.items():
        if op in getattr(entry.load(), "solve_ops", ()):
            example = entry.resolve(entry.spec.example)

            def pose(length: int, example: Any = example) -> tuple[nn.Module, Tensor]:
                cell, x = example(3, 9, seed=0)
                return cell, sized(x, 3, length)

            yield name, pose


def _gradients(states: Tensor, weights: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    probe = torch.arange(states.numel(), device=states.device).cos().reshape(states.shape).to(states.dtype)
    # Both ways to the states share the graph of the drive, so it is kept for the second.
    found = torch.autograd.grad((states * probe).sum().abs(), list(weights.values()), allow_unused=True, retain_graph=True)
    return {name: torch.zeros_like(weight) if gradient is None else gradient for (name, weight), gradient in zip(weights.items(), found, strict=True)}
