"""What a kernel wrote down of a solve, read from the device when somebody asks."""

from __future__ import annotations

import torch
from torch import Tensor

from pararnn.scans.segments import Offsets
from pararnn.selection import Considered
from pararnn.solver.planner import Plan
from pararnn.solver.result import Status


class Record:
    """The parts of a `SolveResult` that lie on the device.

    `record` is `(sequences, blocks, 3)`: sweeps made, the largest update of the last one in tolerances, and 1 where the walk repaired what had not
    converged. `ends` are the offsets of packed sequences, None without packing.
    """

    # A result takes these from here too. Kernels begin and end with the interval of the plan, and who was asked before them is not known to them.
    attempts: tuple[tuple[int, int], ...] = ()
    passed_over: tuple[Considered, ...] = ()

    def __init__(self, plan: Plan, states: Tensor, initial: Tensor, record: Tensor, ends: Offsets | Tensor | None) -> None:
        self._plan, self._states, self._initial, self._record, self._ends = plan, states, initial, record, ends
        self._on_graph = torch.is_grad_enabled()

    @property
    def final(self) -> Tensor:
        """The last state of every sequence, differentiable where the states are; nothing waits for the device."""
        if torch.is_grad_enabled() == self._on_graph:
            return self._last()
        with torch.set_grad_enabled(self._on_graph):
            return self._last()

    def _last(self) -> Tensor:
        if self._ends is None:
            return self._states.select(1, -1) if self._states.shape[1] else self._initial
        ends = self._ends if isinstance(self._ends, Tensor) else torch.tensor(self._ends, device=self._states.device)
        last = self._states[0, (ends[1:] - 1).clamp(min=0)]
        return torch.where((ends.diff() > 0).unsqueeze(1), last, self._initial)

    @property
    def status(self) -> Status:
        """How the solve ended."""
        if not bool(self._states.detach().isfinite().all()):
            return Status.NOT_FINITE
        if self._repaired.any():
            return Status.REPAIRED
        return Status.CONVERGED if self.iterations else Status.WALKED

    @property
    def converged(self) -> Tensor:
        """`(sequences,)`, true where no part of a sequence was repaired."""
        return ~self._repaired.to(self._states.device)

    @property
    def iterations(self) -> int:
        """The most sweeps that a part made, none in a walk."""
        return int(self._numbers[..., 0].max()) if self._numbers.numel() else 0

    @property
    def updates(self) -> tuple[float, ...]:
        """Nothing: kernels keep the last update alone, see `margin`."""
        return ()

    @property
    def margin(self) -> float | None:
        """The largest update of a last sweep in tolerances, of what was not repaired; None for a walk."""
        settled = self._numbers[self._numbers[..., 2] == 0]
        return float(settled[:, 1].max()) if self.iterations and len(settled) else None

    @property
    def walked(self) -> int:
        """The length of the longest sequence where any was walked."""
        return 0 if self.iterations and not bool(self._repaired.any()) else self._plan.length

    @property
    def _numbers(self) -> Tensor:
        # The result keeps each part that was asked for; what the parts share is kept here, in the place of what lies on the device.
        self._record = self._record.cpu()
        return self._record

    @property
    def _repaired(self) -> Tensor:
        return (self._numbers[..., 2] != 0).any(1)
