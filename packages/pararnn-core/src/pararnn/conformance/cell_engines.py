"""The check of a cell under engines: kernels that are compiled from its step give the states and gradients of the walk."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pararnn.compiler.engines import engines
from pararnn.conformance.comparison import difference
from pararnn.conformance.placing import reasons_of
from pararnn.conformance.samples import bounded, in_dtype, sized
from pararnn.errors import ConformanceError
from pararnn.provenance import Entry
from pararnn.registry import installed
from pararnn.solver.api import cell_problem, walk_problem
from pararnn.solver.asking import facts_of
from pararnn.solver.config import NewtonConfig
from pararnn.solver.problem import Problem
from pararnn.solver.result import SolveResult
from pararnn.specs import BackendSpec

BATCH, TIME = 2, 65
# Ends of tiles and of vectors fall inside of a sequence, and some sequences are shorter than an interval or empty.
SEGMENTS = (40, 0, 1, 24)
INTERVALS = (TIME, "parallel")
DTYPES = (torch.float64, torch.float32)


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A cell with inputs and where it starts from, in words `words`."""

    cell: Any
    x: Tensor
    start: Tensor
    offsets: Tensor | None
    words: str

    def pose(self, config: NewtonConfig) -> Problem:
        """The problem of this case."""
        return cell_problem(self.cell, self.x, config, h0=self.start, cu_seqlens=self.offsets)

    def on(self, device: str) -> Case:
        """The same on `device`."""
        if device == self.x.device.type:
            return self
        offsets = None if self.offsets is None else self.offsets.to(device)
        return replace(self, cell=copy.deepcopy(self.cell).to(device), x=self.x.to(device), start=self.start.to(device), offsets=offsets)

    def solved(self, config: NewtonConfig, solve: Callable[[Problem, NewtonConfig], SolveResult]) -> dict[str, Tensor]:
        """States, final states, and gradients of a fixed functional of them by all that has one, by names for a message."""
        sources = {"x": self.x.detach().clone().requires_grad_(), "h0": self.start.detach().clone().requires_grad_()}
        asked = replace(self, x=sources["x"], start=sources["h0"])
        sources |= {name: weight for name, weight in self.cell.named_parameters() if weight.requires_grad}
        result = solve(asked.pose(config), config)
        loss = torch.zeros((), device=result.states.device)
        for tensor in (result.states, result.final):
            loss = loss + (tensor * torch.arange(1, tensor.numel() + 1, device=tensor.device).cos().reshape(tensor.shape).to(tensor.dtype)).sum().real
        gradients = torch.autograd.grad(loss, list(sources.values()), allow_unused=True)
        found = {"the states": result.states, "the final states": result.final}
        for (name, source), gradient in zip(sources.items(), gradients, strict=True):
            found[f"the gradient by {name}"] = torch.zeros_like(source) if gradient is None else gradient
        return found


def check_compiled_equals_walk(cell: Any, x: Tensor) -> str | None:
    """Kernels of every engine that serves here give states and gradients of the walk: batched and packed, in float64 and float32."""
    backends = installed().backends("solve")
    obstacles: dict[str, dict[str, None]] = {}
    count = 0
    for label, case, device in _asked(cell, x):
        for interval in INTERVALS:
            config = NewtonConfig(backend=label, interval=interval)  # type: ignore[arg-type]
            if found := _obstacles(backends[label], case, config, device):
                for obstacle in found:
                    obstacles.setdefault(obstacle, {})[label] = None
                continue
            count += 1
            _hold(label, case.on(device), config, backends[label].load())
    if count:
        return None
    told = (f"{', '.join(labels)}: {obstacle}" for obstacle, labels in obstacles.items())
    return "; ".join(told) or "no installed plugin offers an engine, which would compile the step"


def _asked(cell: Any, x: Tensor) -> Iterator[tuple[str, Case, str]]:
    """Every engine by the name of its backend, with each case, and the device on which it is asked."""
    for label, engine in engines():
        # Engines of a GPU are asked there, whatever the cell was given on. Without one, the reason is theirs to tell.
        device = engine.device if engine.device != "cuda" or torch.cuda.is_available() else x.device.type
        for dtype in DTYPES:
            for case in _cases(in_dtype(cell, dtype), x, dtype):
                yield label, case, device


def _cases(cell: Any, x: Tensor, dtype: torch.dtype) -> Iterator[Case]:
    """Two sequences, and several packed into one row."""
    for packed in (False, True):
        inputs = sized(x, 1 if packed else BATCH, TIME).to(dtype)
        offsets = torch.tensor(tuple(itertools.accumulate(SEGMENTS, initial=0))) if packed else None
        start = cell.initial_state(len(SEGMENTS) if packed else BATCH).detach()
        start = bounded(cell, start + 0.1 * torch.randn_like(start))
        yield Case(cell=cell, x=inputs, start=start, offsets=offsets, words=f"{'packed' if packed else 'batched'}, {dtype}")


def _obstacles(backend: Entry[BackendSpec], case: Case, config: NewtonConfig, device: str) -> tuple[str, ...]:
    """Why the backend cannot serve the very request that a training step would make of it on `device`."""
    # The request holds the problem weakly, and the name keeps it alive.
    problem = case.pose(config)
    found: tuple[str, ...] = reasons_of(backend, replace(facts_of(problem, config).request("solve"), device=device))
    return found


def _hold(label: str, case: Case, config: NewtonConfig, solve: Callable[[Problem, NewtonConfig], SolveResult]) -> None:
    found, expected = case.solved(config, solve), case.solved(config, _walked)
    for what, truth in expected.items():
        is_gradient = "gradient" in what
        scale = truth.detach().abs().max().clamp(min=1.0) if is_gradient and truth.numel() else 1.0
        how = difference(found[what] / scale, truth / scale, "gradients" if is_gradient else "states")
        if how is not None:
            walks = "walked" if config.interval == TIME else "in intervals"
            raise ConformanceError(
                f"compiled by {label!r} ({case.words}, {walks}), {what} and what the walk gives differ {how}; if the checks of step and drive pass, "
                "this is a fault of the engine: report it with the cell, and solve with NewtonConfig(backend='torch') meanwhile"
            )


def _walked(problem: Problem, config: NewtonConfig) -> SolveResult:
    return walk_problem(problem)
