"""An equation over depth by the walk and by each way to solve it in parallel; what `cpu_nanode_depth.py` and `gpu_nanode_depth.py` time."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from pararnn_nanode import DenseField, Solution, TrigPath
from pararnn_nanode.depth.planner import plan
from pararnn_nanode.depth.solve import integrate
from pararnn_nanode.integrate import fixed
from pararnn_nanode.integrate.catalogue import find
from pararnn_nanode.integrate.schedule import schedule

WAYS = ("newton", "picard", "windowed")


class Case:
    """`dx/dt = tanh(W(t) x)` with `TrigPath` of order 2 over the unit span, by Euler's method.

    Args:
        dim, batch, steps: channels, samples and steps.
    """

    def __init__(self, dim: int, batch: int, steps: int, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.field = DenseField(dim, TrigPath((dim, dim), 2, dtype=dtype)).to(device)
        self.x = torch.randn(batch, dim, dtype=dtype, device=device)
        self.schedule = schedule(1.0, steps=steps, span=(0.0, 1.0), device=device)
        self.cuda = device == "cuda"

    def solve(self, way: str) -> Solution:
        """By "walk" or a way of `WAYS`."""
        if way == "walk":
            return fixed.integrate(self.field, self.x, self.schedule)
        return integrate(self.field, self.x, self.schedule, parallel=way)  # type: ignore[arg-type]

    def forward(self, way: str) -> None:
        """Without gradients."""
        with torch.no_grad():
            self.solve(way)

    def both(self, way: str) -> None:
        """Forward and backward, to the coefficients of the path."""
        self.field.zero_grad(set_to_none=True)
        self.solve(way).x.square().sum().backward()

    def facts(self) -> dict[str, object]:
        """How each way comes out: iterations, whether it converged, difference to the walk of states and (relative) of gradients; and the plan."""
        found: dict[str, object] = {}
        truth, slope = self._result("walk")
        for way in WAYS:
            states, gradient = self._result(way)
            solution = self.solve(way)
            found[way] = {
                "iterations": solution.iterations,
                "converged": solution.converged,
                "error": float((states - truth).abs().max()),
                "gradient_error": float((gradient - slope).abs().max() / slope.abs().max()),
            }
        planned = plan(self.field, find("euler"), self.schedule, self.x, parallel="auto")
        found["plan"] = {"choice": planned.choice, "walk_ms": planned.walk * 1e3, "parallel_ms": planned.parallel * 1e3}
        return found

    def _result(self, way: str) -> tuple[Tensor, Tensor]:
        self.field.zero_grad(set_to_none=True)
        states = self.solve(way).x
        states.square().sum().backward()
        gradient = self.field.path.coefficients.grad  # type: ignore[union-attr]
        return states.detach(), gradient.detach().clone()  # type: ignore[union-attr, return-value]


def seconds(run: Callable[[], object], *, cuda: bool) -> float:
    """Wall time of one call, its work on the device included."""
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def alternate(runs: dict[str, Callable[[], object]], *, rounds: int, cuda: bool, seconds_each: float, calls: int = 5) -> dict[str, list[float]]:
    """Milliseconds of each run, taken in turn so that a machine that slows down slows all alike; a slow run gets fewer calls a turn.

    The first call of each is not counted, and nothing more is asked of a run that has taken `seconds_each`.
    """
    found: dict[str, list[float]] = {name: [] for name in runs}
    first = {name: seconds(run, cuda=cuda) for name, run in runs.items()}
    slowest = max(first.values())
    for _ in range(rounds):
        for name, run in runs.items():
            if sum(found[name]) < seconds_each * 1e3:
                for _ in range(max(1, min(calls, int(slowest / max(first[name], 1e-9))))):
                    found[name].append(seconds(run, cuda=cuda) * 1e3)
    return found


def summary(times: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Median and least of each."""
    return {name: {"median_ms": median(values), "least_ms": min(values), "calls": len(values)} for name, values in times.items() if values}
