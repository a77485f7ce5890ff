"""Recurrences on which plain Newton iterations fail or crawl: is the answer the loop's, and at what multiple of its time?

    python docs/benchmarks/hard_cells.py [--quick] [--json FILE]

Each case is solved by `pararnn.solve` with the default configuration and by a loop over `unbind(1)`, alternating; medians of wall time on one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from pararnn import Diagonal, NewtonConfig, ParaCfC, ParaRNN, sequential_apply, solve

# The solver in plain torch is what this is about; kernels walk what stalls by themselves.
PLAIN = NewtonConfig(backend="torch")


class Gates(NamedTuple):
    """Drive of the diagonal GRU: gate inputs, and the recurrent weights of each channel."""

    update: Tensor
    reset: Tensor
    candidate: Tensor
    weights: Tensor


class Case(NamedTuple):
    """A name, how it is solved (states, status in words) and how it is walked."""

    name: str
    solve: Callable[[], tuple[Tensor, str]]
    walk: Callable[[], Tensor]


def gru(state: Tensor, drive: Gates) -> Tensor:
    update_weight, reset_weight, candidate_weight = drive.weights.unbind(0)
    update = torch.sigmoid(drive.update + update_weight * state)
    reset = torch.sigmoid(drive.reset + reset_weight * state)
    return torch.lerp(state, torch.tanh(drive.candidate + candidate_weight * reset * state), update)


def by_step(name: str, step: Callable[[Tensor, Any], Tensor], drive: Any, initial: Tensor, bounds: tuple[float, float] | None = None) -> Case:
    def solved() -> tuple[Tensor, str]:
        result = solve(step, Diagonal, drive, initial, bounds=bounds, config=PLAIN)
        return result.states, f"{result.status.name}, {result.iterations} sweeps, {result.walked} steps walked"

    def walked() -> Tensor:
        state, states = initial, []
        leaves = (drive,) if isinstance(drive, Tensor) else drive
        columns = [leaf.unbind(1) if leaf.ndim == 3 else None for leaf in leaves]
        for time_ in range(leaves[0].shape[1]):
            now = [leaf if column is None else column[time_] for leaf, column in zip(leaves, columns, strict=True)]
            state = step(state, now[0] if isinstance(drive, Tensor) else drive._make(now))
            states.append(state)
        return torch.stack(states, dim=1)

    return Case(name, solved, walked)


def cases(quick: bool) -> list[Case]:
    torch.manual_seed(0)
    shrink = 8 if quick else 1
    batch, channels = 2, 16
    slow = torch.zeros(batch, 8192 // shrink, channels)
    signs = torch.randint(0, 2, (batch, 4096 // shrink, channels)) * 2.0 - 1.0
    weak = 0.1 * torch.randn(batch, 4096 // shrink, channels)
    gates = Gates(*(torch.randn(batch, 4096 // shrink, channels) for _ in range(3)), 3 * torch.randn(3, channels))
    cell = ParaCfC(9, channels, max_recurrent_norm=None)
    with torch.no_grad():
        cell.u.fill_(4.0)
    rnn = ParaRNN(cell, config=PLAIN)
    x = torch.randn(batch, 4096 // shrink, 9)
    x[..., -1] = 0.05 + torch.rand(batch, 4096 // shrink)

    def solve_cfc() -> tuple[Tensor, str]:
        states, (result,) = rnn.solve(x)
        return states, f"{result.status.name}, {result.iterations} sweeps, {result.walked} steps walked"

    return [
        by_step("tanh(h + 1e-3), slow manifold", lambda h, z: torch.tanh(h + 1e-3 + z), slow, torch.zeros(batch, channels)),
        by_step("tanh(3 s[t] h), s = +-1, h0 = 1", lambda h, z: torch.tanh(3 * z * h), signs, torch.ones(batch, channels)),
        by_step("diagonal GRU, weights 3 N(0,1)", gru, gates, torch.zeros(batch, channels)),
        by_step("tanh(1.5 h + 0.1 x)", lambda h, z: torch.tanh(1.5 * h + z), weak, torch.zeros(batch, channels)),
        by_step("tanh(1.5 h + 0.1 x), bounds given", lambda h, z: torch.tanh(1.5 * h + z), weak, torch.zeros(batch, channels), bounds=(-1.0, 1.0)),
        Case("ParaCfC without limit, u = 4", solve_cfc, lambda: sequential_apply(cell, x)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="sequences of an eighth of the length, fewer repeats")
    parser.add_argument("--json", type=Path, help="also write the results here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("recurrence", "largest difference from the loop", "solve / loop", "loop, ms", "what happened")
    rows = []
    with torch.no_grad():
        for case in cases(arguments.quick):
            ours, loop = [], []
            for _ in range(3 if arguments.quick else 7):
                start = time.perf_counter()
                states, told = case.solve()
                middle = time.perf_counter()
                truth = case.walk()
                ours.append(middle - start)
                loop.append(time.perf_counter() - middle)
            error = float((states - truth).abs().max())
            row = {
                "case": case.name,
                "error": error,
                "ratio": statistics.median(ours) / statistics.median(loop),
                "loop_ms": 1e3 * statistics.median(loop),
                "told": told,
            }
            rows.append(row | {"solve_seconds": ours, "loop_seconds": loop})
            table.add_row(case.name, f"{error:.1e}", f"{row['ratio']:.2f}", f"{row['loop_ms']:.0f}", told)
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"torch": torch.__version__, "threads": 1, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
