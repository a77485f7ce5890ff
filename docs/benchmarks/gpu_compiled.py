"""Cells compiled from their PyTorch step, on one GPU in one run: ParaCfC against pararnn-torch, a cell of somebody else's, the planner, decoding.

    python docs/benchmarks/gpu_compiled.py --peer FOLDER --json docs/benchmarks/results/gpu_compiled.json

Single precision. FOLDER holds pararnn-torch 0.17.4, put there by `pip install --no-deps --target`; it runs first, in a process of its own. Figures
are medians of `triton.testing.do_bench`, which clears the cache before each run; *looped* ones are calls that follow each other, by the clock. After
each part everything measured so far is written: JSON, tables (.md), and at the end a plot (.png).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gpu_compiled_parts as parts
import torch
from gpu_compiled_tables import draw, tables_of
from gpu_timing import BATCHES, SHAPES, Shape, copy_speed
from machine import environment, machine
from report import publish
from rich.console import Console

Row = Callable[[], dict[str, Any]]
QUICK_SHAPES, QUICK_BATCHES = SHAPES[:1], BATCHES[:1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, help="Folder with pararnn-torch 0.17.4; without it, ours runs alone.")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "gpu_compiled.json")
    parser.add_argument("--parts", nargs="*", default=["layers", "solves", "third party", "decode", "plans"])
    parser.add_argument("--seconds", type=float, default=240, help="No new row is begun after this time.")
    parser.add_argument("--quick", action="store_true", help="One shape: shows that it runs, measures little.")
    arguments = parser.parse_args()
    begin, console = time.perf_counter(), Console(width=200)
    shapes, batches = (QUICK_SHAPES, QUICK_BATCHES) if arguments.quick else (SHAPES, BATCHES)
    results: dict[str, Any] = {"machine": machine() | {"gpu": torch.cuda.get_device_name()}, "quick": arguments.quick}
    results["environment"] = environment("pararnn-core", "pararnn-cfc", "triton")
    prepare(shapes)
    results["preparing_seconds"] = time.perf_counter() - begin
    results["peer"] = peer_of(arguments.peer, quick=arguments.quick) if arguments.peer else {}
    results["copy_tb_per_s"] = copy_speed() / 1e6
    speed = results["copy_tb_per_s"] * 1e6
    measured: dict[str, list[tuple[dict[str, Any], Row]]] = {
        "layers": [({"shape": shape}, partial(parts.layer, "ParaCfC", shape)) for shape in shapes],
        "solves": [({"shape": shape}, partial(parts.solve, shape, speed)) for shape in shapes],
        "third party": [({"shape": shape}, partial(parts.layer, "MinGRU", shape)) for shape in shapes],
        "decode": [({"batch": batch, "cell": cell}, partial(parts.decoding, cell, batch)) for batch in batches for cell in parts.CELLS],
        "plans": [({"shape": shape}, partial(parts.plan, shape)) for shape in shapes],
    }
    for name in arguments.parts:
        results[name] = []
        for case, row in measured[name]:
            if time.perf_counter() - begin > arguments.seconds:
                print(f"out of time: {name} {case} and what comes after are left out", flush=True)
                break
            results[name].append(case | figures(row))
            print(f"{time.perf_counter() - begin:4.0f} s  {name}  {json.dumps(results[name][-1])}", flush=True)
        save(results, arguments.json)
    results["seconds"] = time.perf_counter() - begin
    publish(tables_of(results), results, console, arguments.json)
    draw(results, arguments.json.with_suffix(".png"))


def prepare(shapes: Sequence[Shape]) -> None:
    """Have the kernels of all cases compiled at the same time, in a process each."""
    script = str(Path(__file__).with_name("gpu_compiled_parts.py"))
    commands = [[sys.executable, script, cell, *map(str, shape)] for cell in parts.CELLS for shape in shapes]
    processes = [subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}) for command in commands]
    for process in processes:
        process.wait()


def figures(row: Row) -> dict[str, Any]:
    """What `row` measures, or why it cannot."""
    try:
        return row()
    except Exception as failure:
        torch.cuda.synchronize()
        return {"failed": f"{type(failure).__name__}: {failure}".partition("\n")[0]}
    finally:
        torch.cuda.empty_cache()


def save(results: dict[str, Any], target: Path) -> None:
    """Raw numbers and tables as far as they are."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(results))
    target.with_suffix(".md").write_text("\n\n".join(table.markdown() for table in tables_of(results)) + "\n")


def peer_of(folder: Path, *, quick: bool) -> dict[str, Any]:
    """What the peer measured of itself, as far as it came."""
    with tempfile.TemporaryDirectory() as place:
        target = Path(place) / "peer.json"
        command = [sys.executable, str(Path(__file__).with_name("gpu_compiled_peer.py")), str(target), *(["--quick"] if quick else [])]
        # Our packages are imported as `pararnn` too, so theirs must be the only folder on the path.
        ended = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(folder.resolve())}, check=False)
        found: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {"layers": [], "decode": []}
    return found | ({} if ended.returncode == 0 else {"failed": f"it ended with status {ended.returncode}"})


if __name__ == "__main__":
    main()
