"""The checks of a backend that solves cells: of `solve`, or of an operation that a cell names in `solve_ops`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from pararnn.conformance.comparison import difference
from pararnn.conformance.placing import place_of
from pararnn.conformance.samples import in_dtype, sized
from pararnn.errors import ConformanceError
from pararnn.provenance import Entry
from pararnn.registry import installed
from pararnn.solver.api import cell_problem, walk_problem
from pararnn.solver.config import NewtonConfig
from pararnn.solver.problem import Problem
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


def check_solve_states(backend: Entry[BackendSpec]) -> str | None:
    """States and final states are those of the walk, for no step, one and many, with an initial state and packed."""
    for solve, problem, words in _problems(backend):
        with torch.no_grad():
            result, truth = solve(problem), walk_problem(problem)
        for what in ("states", "final"):
            if (how := difference(getattr(result, what), getattr(truth, what))) is not None:
                raise ConformanceError(f"{words}: {what} of the backend and of the walk differ {how}")
    return _reason(backend)


def check_solve_gradients(backend: Entry[BackendSpec]) -> str | None:
    """Gradients of the states by every parameter are those of the walk."""
    for solve, problem, words in _problems(backend):
        weights = dict(problem.cell.named_parameters()) if isinstance(problem.cell, nn.Module) else {}
        if problem.length and weights:
            found, expected = (_gradients(how(problem).states, weights) for how in (solve, walk_problem))
            for name in weights:
                if (how := difference(found[name], expected[name], "gradients")) is not None:
                    raise ConformanceError(f"{words}: the gradient of the backend by {name} and that of the walk differ {how}")
    return _reason(backend)


CHECKS: tuple[Callable[[Entry[BackendSpec]], str | None], ...] = (check_solve_states, check_solve_gradients)


def _problems(backend: Entry[BackendSpec]) -> Iterator[tuple[Callable[[Problem], Any], Problem, str]]:
    place = place_of(backend)
    if isinstance(place, str):
        return
    implementation = backend.load()
    config = NewtonConfig(interval="parallel")
    for name, pose in _cells(backend.spec.op):
        for length in (0, 1, 2, 7, 65):
            cell, x = pose(length)
            cell, x = in_dtype(cell, place.dtype).to(place.device), x.to(place.device, place.dtype)
            start = cell.initial_state(x.shape[0])  # type: ignore[operator]
            problem = cell_problem(cell, x, config, h0=start + 0.1 * torch.randn_like(start))
            yield lambda problem: implementation(problem, config), problem, f"{name}, T = {length}, {place}"
        offsets = torch.tensor((0, *SEGMENTS)).cumsum(0)
        cell, x = pose(sum(SEGMENTS))
        cell, x = in_dtype(cell, place.dtype).to(place.device), x[:1].to(place.device, place.dtype)
        yield lambda problem: implementation(problem, config), cell_problem(cell, x, config, cu_seqlens=offsets), f"{name}, packed, {place}"


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


def _reason(backend: Entry[BackendSpec]) -> str | None:
    place = place_of(backend)
    if isinstance(place, str):
        return place
    return None if any(True for _ in _cells(backend.spec.op)) else f"no installed cell names {backend.spec.op} in its solve_ops"
