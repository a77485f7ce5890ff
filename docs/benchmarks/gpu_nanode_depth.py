"""A neural ODE solved in parallel over depth against its walk, on a GPU.

    python docs/benchmarks/gpu_nanode_depth.py --json docs/benchmarks/results/gpu_nanode_depth.json

`tanh(W(t) x)` with a trigonometric path of order 2, Euler's method, float32; forward without gradients, and forward and backward to all
coefficients. The walk runs as it is, and (forward, up to 4096 steps) replayed as a CUDA graph, weights built inside. Contestants take turns; at most
`--seconds` in all, what is left over is named in the JSON. Standard library, torch and the packages only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from depth_contestants import WAYS, Case, alternate, summary

DIMS, BATCHES, STEPS = (32, 64), (1, 8), (1024, 4096, 16384)
LONGEST_GRAPH = 4096


def main() -> None:
    """Time every shape, write compact JSON, print one line a shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=220.0, help="stop to begin new shapes after this long")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    begun = time.perf_counter()
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": [], "left_out": []}
    shapes = sorted(itertools.product(DIMS, BATCHES, STEPS), key=lambda shape: shape[2])
    for dim, batch, steps in shapes:
        if time.perf_counter() - begun > arguments.seconds:
            results["left_out"].append([dim, batch, steps])
            continue
        row = _row(Case(dim, batch, steps, device="cuda"), arguments.rounds)
        results["rows"].append({"dim": dim, "batch": batch, "steps": steps} | row)
        torch.cuda.empty_cache()
        short = {what: {name: round(one["median_ms"], 2) for name, one in row[what].items()} for what in ("forward", "both")}
        print(dim, batch, steps, short, row["facts"]["plan"]["choice"], row.get("graph_failed", ""), flush=True)
    results["seconds"] = round(time.perf_counter() - begun, 1)
    text = json.dumps(results)
    if arguments.json:
        arguments.json.write_text(text + "\n")
    print(text)


def _row(case: Case, rounds: int) -> dict[str, Any]:
    row: dict[str, Any] = {"facts": case.facts()}
    runs: dict[str, Callable[[], object]] = {way: lambda way=way: case.forward(way) for way in ("walk", *WAYS)}
    if case.schedule.steps <= LONGEST_GRAPH:
        try:
            runs["walk as a graph"] = _graph(case)
        except Exception as failure:
            row["graph_failed"] = str(failure).partition("\n")[0]
    row["forward"] = summary(alternate(runs, rounds=rounds, cuda=True, seconds_each=2.0))
    both: dict[str, Callable[[], object]] = {way: lambda way=way: case.both(way) for way in ("walk", *WAYS)}
    row["both"] = summary(alternate(both, rounds=rounds, cuda=True, seconds_each=2.0))
    torch.cuda.synchronize()
    row["peak_mib"] = {}
    for way in ("walk", *WAYS):
        case.field.zero_grad(set_to_none=True)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        case.both(way)
        row["peak_mib"][way] = round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)
    return row


def _graph(case: Case) -> Callable[[], object]:
    """The walk without gradients as one launch."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        case.forward("walk")
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        case.forward("walk")
    return graph.replay


if __name__ == "__main__":
    main()
