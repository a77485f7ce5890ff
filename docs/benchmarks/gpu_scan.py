"""The diagonal scan on a GPU: share of the memory limit, forward and forward+backward, of each kernel and of the peers that can be imported.

    python docs/benchmarks/gpu_scan.py [--json FILE] [--sweep] [--shapes B,T,D ...] [--without PEER ...] [--processes N]

Single precision. Every contestant runs as a CUDA graph under `triton.testing.do_bench`, which clears the cache between runs; medians of three rounds,
in each of which all contestants of a shape run in turn. The limit is what a copy of 8 GiB reaches in the same run, over the bytes that must be moved:
12 an element forward (two read, one written), 20 more backward (maps, states and gradient read, two gradients written). A product of maps and terms,
number by number, shows how much of that is reached without a scan: at small shapes the launch counts, and that the cleared cache is written back.

Ours has tensors `(B, T, D)`, and with the kernel that it chooses itself also `(B, D, T)`, read by their strides. Peers have their own layout,
`(B, D, T)`, and `(B, T, D)` too: with copies in their layout of what goes in, and copies back of what comes out, gradients included. Each result is
contiguous in the layout of what went in, and is copied where it is not. Peers that cannot be imported are named with the reason; a shape that one
does not support is left out.

`--sweep` tries other sizes of tiles. Kernels are compiled before, in `--processes` processes (0: when they are first used). Blocks of 2 x 2 are
measured at shapes of their own, `D` of them channels, in the same way. Errors are those of the first channels against plain PyTorch in double
precision, relative to the largest number.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
import triton
from gpu_scan_contestants import (
    BTD,
    PEERS,
    Contestant,
    Run,
    Shape,
    blocks,
    chosen,
    contestants,
    errors_of,
    first_line,
    imported,
    inputs,
    runs_of,
    truth,
)
from gpu_scan_tables import SHARES, aims_of, heading, tables_of
from gpu_timing import copy_speed, recover
from triton.testing import do_bench

SHAPES: list[Shape] = list(SHARES)
FORWARD_BYTES, BOTH_BYTES = 12, 32
BLOCK_SHAPES: list[Shape] = [(32, 4096, 512), (1, 65536, 256)]
# Four numbers of a map and two each of terms and states forward; backward these maps, states and gradients, and two gradients.
BLOCK_FORWARD_BYTES, BLOCK_BOTH_BYTES = 32, 88
BLOCKS = "blocks"
ROUNDS = 3

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "gpu_scan.json")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--shapes", nargs="*", type=lambda text: tuple(int(part) for part in text.split(",")), default=SHAPES)
    parser.add_argument("--without", nargs="*", default=[], metavar="PEER", choices=list(PEERS))
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.processes:
        compile_all(arguments.shapes, sweep=arguments.sweep, processes=arguments.processes)
    speed = copy_speed()
    facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__, "copy_tb_per_s": speed / 1e6}
    peers, missing = imported(arguments.without)
    results: dict[str, Any] = facts | {"missing": missing, "rows": [], "blocks": []}
    print(heading(results), flush=True)
    for shape in arguments.shapes:
        results["rows"] += rows_of(shape, contestants(shape[1], sweep=arguments.sweep, peers=peers), speed)
        save(results, arguments.json)
    for shape in BLOCK_SHAPES:
        results["blocks"] += reported(shape, {(BLOCKS, BTD): blocks(shape)}, speed, (BLOCK_FORWARD_BYTES, BLOCK_BOTH_BYTES))
        show(results["blocks"][-1])
    save(results, arguments.json)
    print(tables_of(results)[-1].markdown())


def compile_all(shapes: Sequence[Shape], *, sweep: bool, processes: int) -> None:
    """Compile in processes of their own, one for each contestant at a time, what the shapes need, which leaves it in Triton's cache."""
    # One row of them takes the same kernels.
    small: list[Shape] = [(1, length, size) for _, length, size in shapes]
    compiled_by_triton = {name: torch.mul for name in PEERS if "Triton" in name}
    names = dict.fromkeys(contestant.name for contestant in contestants(1, sweep=sweep, peers=compiled_by_triton))
    with multiprocessing.get_context("spawn").Pool(processes) as workers:
        for failure in workers.imap_unordered(compiled, [(name, small, sweep) for name in (BLOCKS, *names)]):
            if failure:
                print(failure, flush=True)


def compiled(job: tuple[str, list[Shape], bool]) -> str:
    """Run once everything of one name; why that failed."""
    name, shapes, sweep = job
    peers, _ = imported([peer for peer in PEERS if peer != name])
    try:
        for shape in shapes:
            tensors = inputs(shape)
            for one in contestants(shape[1], sweep=sweep, peers=peers):
                if one.name == name:
                    run_all(runs_of(one, tensors[one.layout]))
        for _, length, size in BLOCK_SHAPES if name == BLOCKS else ():
            run_all(blocks((1, length, size)))
    except Exception as failure:
        return f"{name}: {first_line(failure)}"
    return ""


def run_all(runs: dict[str, Run]) -> None:
    for run in runs.values():
        run()
    torch.cuda.synchronize()


def rows_of(shape: Shape, everybody: list[Contestant], speed: float) -> list[Row]:
    """Times and errors of all contestants at one shape."""
    tensors = inputs(shape)
    runs = {(one.name, one.layout): runs_of(one, tensors[one.layout]) for one in everybody}
    rows = reported(shape, runs, speed, (FORWARD_BYTES, BOTH_BYTES))
    expected = truth(tensors[BTD])
    for row, one in zip(rows, everybody, strict=True):
        row["chosen"] = one.layout == BTD and one.name == chosen(shape)
        if one.scans and "failed" not in row:
            row |= errors_of(one, tensors[one.layout], expected)
        show(row)
    runs.clear()
    torch.cuda.empty_cache()
    return rows


def reported(shape: Shape, runs: dict[tuple[str, str], dict[str, Run]], speed: float, counts: tuple[int, int]) -> list[Row]:
    """A row for each contestant: microseconds, and the share of what the bytes it must move would take at the speed of a copy."""
    elements = shape[0] * shape[1] * shape[2]
    rows: list[Row] = []
    for (name, layout), found in measured(runs).items():
        shares = {}
        for kind, count in zip(("forward", "both"), counts, strict=True):
            if f"{kind}_us" in found:
                shares[f"{kind}_percent"] = 100 * count * elements / speed / found[f"{kind}_us"]
        rows.append({"shape": shape, "name": name, "layout": layout} | found | shares)
    return rows


def show(row: Row) -> None:
    print("  ".join(f"{key}={value:.3g}" if isinstance(value, float) else f"{key}={value}" for key, value in row.items()), flush=True)


def measured(contestants: dict[tuple[str, str], dict[str, Run]]) -> dict[tuple[str, str], Row]:
    """Microseconds of each contestant, medians of rounds in which all of them run; or why one failed."""
    rows: dict[tuple[str, str], Row] = {key: {} for key in contestants}
    for kind in ("forward", "both"):
        graphs, pool = {}, torch.cuda.graph_pool_handle()
        for key, runs in contestants.items():
            if kind not in runs:
                continue
            try:
                graphs[key] = graphed(runs[kind], pool)
            except Exception as failure:
                rows[key].setdefault("failed", f"{kind}: {first_line(failure)}")
                recover()
        times: dict[tuple[str, str], list[float]] = {key: [] for key in graphs}
        for _ in range(ROUNDS):
            for key, graph in graphs.items():
                times[key].append(microseconds(graph))
        for key, found in times.items():
            rows[key][f"{kind}_us"] = median(found)
        graphs.clear()
        torch.cuda.empty_cache()
    return rows


def graphed(run: Run, pool: object) -> Run:
    """The run as a CUDA graph; three runs before it compile what has to be compiled. Graphs of one pool share the memory of their results."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        run()
    return graph.replay


def microseconds(run: Run) -> float:
    return do_bench(run, warmup=5, rep=40, return_mode="median") * 1e3


def save(results: dict[str, Any], target: Path) -> None:
    """What is measured so far, as numbers and as tables."""
    results["aims"] = aims_of(results["rows"])
    target.write_text(json.dumps(results, indent=2) + "\n")
    target.with_suffix(".md").write_text("\n\n".join([heading(results), *(table.markdown() for table in tables_of(results))]) + "\n")


if __name__ == "__main__":
    main()
