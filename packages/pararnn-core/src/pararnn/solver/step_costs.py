"""What the parts of a solve cost, estimated from what a step does.

Time goes into two things: each call of an operation costs a fixed amount, and each element it touches a little more. A walk pays the
fixed part `T` times. Intervals of `L` steps pay it only `L` times a sweep, for several sweeps, over all `T / L` intervals at once.
The operations of a step are counted, not guessed: the step runs once, on one time step, under a counter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pararnn.costs import Machine, machine_of
from pararnn.solver import drive as drives
from pararnn.solver.problem import Problem

# Sweeps with Jacobians that a typical solve needs, before the one that writes the states.
SWEEPS = 2
# Shorter intervals start from a worse guess, because less was walked, and need one sweep more.
LONG_ENOUGH = 16
# What an element costs, in units of the plainest scan step: ordinary operations, a lerp, transcendental functions, and a term of a matrix product.
ORDINARY, LERP, HEAVY, PRODUCT = 2, 4, 7, 0.25
HEAVY_NAMES = ("tanh", "sigmoid", "exp", "log", "softplus", "gelu", "silu", "sin", "cos", "pow", "sqrt", "erf", "div")
PRODUCT_NAMES = ("mm", "addmm", "bmm", "baddbmm", "matmul")
# Calls of a parallel solve that do not depend on the interval: guess, corrections, decisions on the host.
SOLVE_CALLS = 450
# Passes over the entry states of all intervals that a correction takes.
CORRECTION_PASSES = 40


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Estimated seconds of the parts of a solve.

    `step` and `linearize` are `(calls, weighted passes over the state)` of the two; `batched` says that Jacobians are taken for many steps in
    one call, because `torch.func` takes them.
    """

    machine: Machine
    rows: int
    state: int
    length: int
    total: int
    timed: int
    step: tuple[float, float]
    linearize: tuple[float, float]
    compose: int
    apply: int
    batched: bool

    @staticmethod
    def of(problem: Problem, longest: int) -> Costs:
        """Count what one step of `problem` does."""
        first = drives.map_timed(lambda leaf: leaf[:, :1], problem.drive)
        state = problem.initial[:, :1]
        rows, total = problem.rows, problem.length
        if problem.offsets is not None:
            rows = max(1, round(total / max(longest, 1)))
        with torch.no_grad():
            step = _count(lambda: problem.step(state, first), state)
            linearize = _count(lambda: problem.linearize(state, first), state)
        timed = sum(math.prod(leaf.shape[2:]) for leaf in drives.leaves(problem.drive) if drives.is_timed(leaf))
        return Costs(
            machine=machine_of(problem.initial.device),
            rows=rows,
            state=problem.state_size,
            length=longest,
            total=total * problem.rows,
            timed=timed,
            step=step,
            linearize=linearize,
            compose=problem.structure.cost(problem.state_size)[0],
            apply=problem.structure.cost(problem.state_size)[1],
            batched=problem.analytic is None,
        )

    def walk(self) -> float:
        """Every step one after the other."""
        return self.length * (self._seconds(self.step, self.rows * self.state) + self.machine.call) + self._copy(self.state)

    def sweep(self, interval: int) -> float:
        """All intervals at once, with the products of their Jacobians."""
        lanes = self.rows * math.ceil(self.length / interval)
        product = self.machine.operation(lanes * self.compose) + 2 * self.machine.operation(lanes * self.apply)
        if not self.batched:
            return interval * (self._seconds(self.linearize, lanes * self.state) + product + self.machine.call)
        jacobians = self.linearize[0] * self.machine.call + self.machine.operation(self.total * self.state * self.linearize[1])
        return interval * (self._seconds(self.step, lanes * self.state) + product + 2 * self.machine.call) + jacobians

    def record(self, interval: int) -> float:
        """All intervals at once, writing the states."""
        lanes = self.rows * math.ceil(self.length / interval)
        return interval * (self._seconds(self.step, lanes * self.state) + self.machine.call) + 2 * self._copy(self.state)

    def parallel(self, interval: int) -> float:
        """A typical solve: cut the drive, sweep, correct the boundaries, write the states."""
        count = math.ceil(self.length / interval)
        correction = self.machine.operation(CORRECTION_PASSES * ORDINARY * self.rows * count * self.state)
        sweeps = SWEEPS if interval >= LONG_ENOUGH else SWEEPS + 1
        boundary = (sweeps + 1) * (min(count, 6 * math.sqrt(count) + 20) * 2 * self.machine.call + correction)
        return SOLVE_CALLS * self.machine.call + self._copy(self.timed) + sweeps * self.sweep(interval) + self.record(interval) + boundary

    def adjoint(self) -> float:
        """Gradients by the reverse scan: all Jacobians at once, and a walk over them."""
        elements = self.total * self.state
        jacobians = self.linearize[0] * self.machine.call + self.machine.operation(elements * self.linearize[1])
        return jacobians + 3 * self.machine.operation(self.total * self.apply) + self.length * self.machine.operation(self.rows * self.apply)

    def backpropagation(self) -> float:
        """Gradients by autograd through a walk: the graph of every step, built and run backwards."""
        return 4 * self.walk()

    def _copy(self, channels: int) -> float:
        return self.machine.operation(self.total * channels)

    def _seconds(self, work: tuple[float, float], elements: int) -> float:
        calls, passes = work
        return (calls - 1) * self.machine.call + self.machine.operation(elements * passes)


class _Counter(TorchDispatchMode):
    """Counts operations and the elements that they compute or multiply, heavy ones several times."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.elements = 0, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if isinstance(result, Tensor) and not func.is_view:
            weight: float = HEAVY if name.startswith(HEAVY_NAMES) else LERP if name.startswith("lerp") else ORDINARY
            if name in PRODUCT_NAMES:
                inner = next((arg.shape[-2] for arg in reversed(args) if isinstance(arg, Tensor)), 1)
                weight = max(weight, PRODUCT * inner)
            self.calls += 1
            self.elements += weight * result.numel()
        return result


def _count(call: Any, state: Tensor) -> tuple[float, float]:
    counter = _Counter()
    with counter:
        call()
    return max(1, counter.calls), max(1.0, counter.elements / max(1, state.numel()))
