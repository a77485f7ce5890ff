"""Which backend solves: the request that a cell or a problem makes, and the answer, remembered by plain facts."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pararnn.cell import optional
from pararnn.compiler.posed import PosedStep
from pararnn.errors import BackendError
from pararnn.registry import installed
from pararnn.scans.dispatch import only_numbers
from pararnn.selection import REMEMBERED, Request, Selection, select
from pararnn.solver.config import NewtonConfig
from pararnn.solver.problem import Problem
from pararnn.transforms import inside_transform

# Options of a request, and what they are where it says nothing.
OPTIONS: dict[str, Any] = {
    "structure": "",
    "packed": False,
    "cell": "",
    "derivatives": "once",
    "on_stall": "walk",
    "jacobian": "auto",
    "interval": "auto",
    "scan_backend": "auto",
    "automatic": False,
    "linear": False,
    "exact": True,
    "autocast": False,
    "transformed": False,
    "compiling": False,
    "obstacles": (),
    "step": None,
}


class Facts(NamedTuple):
    """What a request of a solve says; the last ones are options.

    Attributes:
        rows, time: sizes; None while a graph is compiled, which may serve any.
        structure: the name of the structure class.
        packed: whether sequences are packed into one row.
        cell: the name of the cell's class.
        derivatives, on_stall, jacobian, interval, scan_backend: as in `NewtonConfig`.
        automatic: whether the backend is for `"auto"` to choose; a user who names one may be content with what `"auto"` would not take.
        linear, exact: what the cell claims of itself.
        autocast: whether autocast is on for the device.
        transformed: whether a `torch.func` transform, forward mode or another tracer stands between the tensors and their numbers.
        compiling: whether `torch.compile` looks on.
        obstacles: what `cell.solve_obstacles()` gives: sentences why this very object is not what the kernels of its own operations were made for.
        step: the identity of the step, for backends that compile it; None where the operation is a cell's own.
    """

    device: str
    dtype: torch.dtype
    rows: int | None
    time: int | None
    state: int
    needs_grad: bool
    structure: str
    packed: bool
    cell: str
    derivatives: str
    on_stall: str
    jacobian: str
    interval: int | str
    scan_backend: str
    automatic: bool
    linear: bool
    exact: bool
    autocast: bool
    transformed: bool
    compiling: bool
    obstacles: tuple[str, ...]
    step: PosedStep | None

    def request(self, op: str) -> Request:
        """The same as a request of `op`."""
        sizes = {"rows": self.rows, "time": self.time, "state": self.state}
        return Request.of(
            op,
            device=self.device,
            dtype=self.dtype,
            needs_grad=self.needs_grad,
            options={name: value for name, value in self._asdict().items() if name in OPTIONS and value != OPTIONS[name]},
            **{axis: size for axis, size in sizes.items() if size is not None},
        )


def facts_of(problem: Problem, config: NewtonConfig, *, compiling: bool = False) -> Facts:
    """What a solve of `problem` asks for; `compiling` says that it stands for those that a graph will solve."""
    initial, transformed = problem.initial, inside_transform() if compiling else not only_numbers()
    device, (rows, _, state) = initial.device.type, initial.shape
    # In order instead of by name, which takes half as long; small solves are bound by such things.
    return Facts(
        device,
        initial.dtype,
        None if compiling else rows,
        None if compiling else problem.length,
        state,
        torch.is_grad_enabled(),
        problem.structure.__name__,
        problem.offsets is not None,
        type(problem.cell).__qualname__,
        config.derivatives,
        config.on_stall,
        config.jacobian,
        config.interval,
        config.scan_backend,
        config.backend == "auto",
        problem.linear,
        problem.exact,
        torch.is_autocast_enabled(device),
        transformed,
        compiling,
        (),
        None if transformed or config.backend == "torch" else PosedStep.of(problem),
    )


def facts_of_cell(cell: Any, x: Tensor, config: NewtonConfig, *, packed: bool) -> Facts:
    """What a solve of `cell` over inputs `x` asks for, by what is known before its drive is computed."""
    obstacles, dtype = optional(cell, "solve_obstacles"), optional(cell, "state_dtype")
    compiling, device, shape = torch.compiler.is_compiling(), x.device.type, x.shape
    return Facts(
        device,
        cell.initial_state(0).dtype if dtype is None else dtype,
        None if compiling else shape[0],
        None if compiling else shape[1],
        cell.state_size,
        torch.is_grad_enabled(),
        cell.structure.__name__,
        packed,
        type(cell).__qualname__,
        config.derivatives,
        config.on_stall,
        config.jacobian,
        config.interval,
        config.scan_backend,
        config.backend == "auto",
        optional(cell, "is_linear", False),
        optional(cell, "exact_jacobian", True),
        torch.is_autocast_enabled(device),
        # A compiled graph sees numbers, whatever stands for them while it is made.
        not compiling and not only_numbers(),
        compiling,
        () if obstacles is None else obstacles(),
        None,
    )


def ask(ops: tuple[str, ...], facts: Facts, backend: str) -> Selection | None:
    """The selection of the first of `ops` that some backend serves, None where none does; remembered."""
    # A step that cannot be told from another is asked about at each solve.
    if facts.step is not None and not facts.step.identity.is_sure:
        return _first(ops, facts, backend, remember=False)
    memory: dict[Any, Any] = installed().memo
    key = (ops, facts, backend)
    try:
        found: Selection | None = memory[key]
    except KeyError:
        found = _first(ops, facts, backend)
        if len(memory) >= REMEMBERED:
            memory.clear()
        memory[key] = found
    return found


def _first(ops: tuple[str, ...], facts: Facts, backend: str, *, remember: bool = True) -> Selection | None:
    for op in ops:
        with contextlib.suppress(BackendError):
            return select(facts.request(op), backend=backend, remember=remember)
    return None
