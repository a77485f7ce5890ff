"""ParaCfC in plain PyTorch on a GPU: forward, forward and backward, against the walk; the starting point of compiled kernels (`gpu_compiled.py`).

    python docs/benchmarks/gpu_cfc.py [--json FILE]

Medians of event-timed runs, float32. The walk launches a few kernels a step, so its time is launch latency.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch

from pararnn import NewtonConfig, ParaCfC, ParaRNN

SHAPES = [(8, 512, 64), (8, 2048, 256), (8, 4096, 256), (64, 1024, 64), (1, 131072, 64), (1, 131072, 256), (32, 8192, 1024)]


def median_ms(run: Callable[[], object], repeats: int) -> float:
    run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def measure(batch: int, length: int, size: int) -> dict[str, object]:
    torch.manual_seed(0)
    cell = ParaCfC(9, size).cuda()
    x = torch.randn(batch, length, 9, device="cuda")
    x[..., -1] = 0.05 + torch.rand(batch, length, device="cuda")
    rnn, walk = ParaRNN(cell, config=NewtonConfig(backend="torch")), ParaRNN(cell, solver="sequential")
    with torch.no_grad():
        output, (result,) = rnn.solve(x)
        forward = median_ms(lambda: rnn(x), 5)
        walked = median_ms(lambda: walk(x), 1) if length <= 8192 else None
    cotangent = torch.randn_like(output)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    both = median_ms(lambda: rnn(x).backward(cotangent), 5)
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    row: dict[str, object] = {"shape": (batch, length, size), "interval": result.plan.interval, "iterations": result.iterations}
    return row | {"forward_ms": forward, "both_ms": both, "walk_forward_ms": walked, "peak_mib": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for shape in SHAPES:
        rows.append(measure(*shape))
        print(rows[-1], flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
