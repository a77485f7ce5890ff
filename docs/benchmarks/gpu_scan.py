"""The diagonal scan on a GPU: share of the memory limit, forward and forward+backward, of each kernel and of the peers that can be imported.

    python docs/benchmarks/gpu_scan.py [--json FILE] [--sweep] [--shapes B,T,D ...] [--without PEER ...] [--processes N]

Single precision. Every contestant runs as a CUDA graph under `triton.testing.do_bench`, which clears the cache between runs; medians of three rounds,
in each of which all contestants of a shape run in turn. The limit is what a copy of 8 GiB reaches in the same run, over the bytes that must be moved:
12 an element forward (two read, one written), 20 more backward (maps, states and gradient read, two gradients written). A product of maps and terms,
number by number, shows how much of that is reached without a scan: at small shapes the launch counts, and that the cleared cache is written back.
Peers get their own layout, `(B, D, T)` contiguous, and are left out where they do not support a shape. `--sweep` tries other sizes of tiles. Kernels
are compiled before, in `--processes` processes. Blocks of 2 x 2 are measured at shapes of their own, `D` of them channels, in the same way.
Errors are those of the first channels against plain PyTorch in double precision, relative to the largest state.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median

import torch
import triton
from torch import Tensor
from triton.testing import do_bench

from pararnn import Diagonal, scan
from pararnn.scans import triton_diagonal
from pararnn.scans.launches import Launch, in_chain, in_tiles, launch_for, streaming, walking
from pararnn.scans.triton_memory import processors
from pararnn.structures.block_diagonal import BlockDiagonal

SHAPES = [(8, 4096, 1536), (32, 8192, 1024), (1, 65536, 512), (1, 131072, 64), (8, 2048, 256)]
# Shares of the limit that are aimed at: forward, forward and backward.
AIMS = {(8, 4096, 1536): (90, 85), (32, 8192, 1024): (90, 85), (1, 65536, 512): (80, None), (1, 131072, 64): (60, None), (8, 2048, 256): (60, None)}
FORWARD_BYTES, BOTH_BYTES = 12, 32
BLOCK_SHAPES = [(32, 4096, 512), (1, 65536, 256)]
# Four numbers of a map and two each of terms and states forward; backward these maps, states and gradients, and two gradients.
BLOCK_FORWARD_BYTES, BLOCK_BOTH_BYTES = 32, 88
ROUNDS = 3
COMPARED = 4

Run = Callable[[], object]
Kernel = Callable[[bool], Launch]
MISSING: dict[str, str] = {}


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


def copy_speed() -> float:
    """Bytes a microsecond, counting what is read and what is written."""
    source = torch.empty(1 << 30, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / microseconds(lambda: target.copy_(source))


@contextmanager
def forced(launch: Kernel | None) -> Iterator[None]:
    """Every scan in the block uses the launch of this kernel, for states or for costates."""
    chosen = triton_diagonal.launch_for
    if launch is not None:
        triton_diagonal.launch_for = lambda *_, costate, **__: launch(costate)
    try:
        yield
    finally:
        triton_diagonal.launch_for = chosen


def inputs(shape: tuple[int, int, int]) -> list[Tensor]:
    torch.manual_seed(0)
    maps = 0.9 + 0.1 * torch.rand(shape, device="cuda")
    return [maps.requires_grad_(), torch.randn(shape, device="cuda", requires_grad=True), torch.randn(shape, device="cuda")]


def ours(maps: Tensor, terms: Tensor, grad: Tensor, launch: Kernel | None) -> dict[str, Run]:
    def forward() -> Tensor:
        with forced(launch), torch.no_grad():
            return scan(Diagonal(maps), terms, backend="triton")

    def both() -> object:
        with forced(launch):
            return torch.autograd.grad(scan(Diagonal(maps), terms, backend="triton"), (maps, terms), grad)

    return {"forward": forward, "both": both}


def peer(function: Callable[[Tensor, Tensor], Tensor], maps: Tensor, terms: Tensor, grad: Tensor) -> dict[str, Run]:
    turned = [tensor.detach().mT.contiguous() for tensor in (maps, terms, grad)]
    leaves = [tensor.requires_grad_() for tensor in turned[:2]]

    def forward() -> Tensor:
        with torch.no_grad():
            return function(*leaves)

    return {"forward": forward, "both": lambda: torch.autograd.grad(function(*leaves), leaves, turned[2])}


def peers(without: list[str]) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """What can be imported, by name; each takes maps and terms `(B, D, T)`."""
    found: dict[str, Callable[[Tensor, Tensor], Tensor]] = {}
    names = {
        "accelerated-scan (Triton)": ("accelerated_scan.scalar", "scan"),
        "accelerated-scan (CUDA)": ("accelerated_scan.warp", "scan"),
        "fpscan": ("fpscan.ops", "pscan"),
        "philtorch": ("philtorch", "__version__"),
    }
    for name, (module, attribute) in names.items():
        if name in without:
            continue
        try:
            found[name] = getattr(importlib.import_module(module), attribute)
        except Exception as failure:
            MISSING[name] = f"{type(failure).__name__}: {str(failure).partition(chr(10))[0]}"
    if "philtorch" in found:
        found["philtorch"] = philtorch_scan
    return found


def philtorch_scan(maps: Tensor, terms: Tensor) -> Tensor:
    flat = terms.flatten(0, 1)
    return torch.ops.philtorch.scan(flat, maps.flatten(0, 1), flat.new_zeros(flat.shape[0])).view_as(terms)


def always(launch: Launch) -> Kernel:
    return lambda _: launch


def sweep_of() -> dict[str, Kernel]:
    """Launches worth trying, by what tells them apart."""
    # Rows of 64 to 256 bytes, and tiles of 16 to 64 steps.
    sizes = [(32, 4, 8, 3), (32, 4, 8, 4), (32, 4, 4, 4), (32, 4, 16, 3), (16, 8, 4, 4), (64, 2, 8, 4)]
    streams = [
        Launch(variant="stream", block_time=groups * height, block_state=lanes, groups=groups, stages=stages)
        for lanes, groups, height, stages in sizes
    ]
    walks = [Launch(variant="walk", block_time=time) for time in (8, 16)]
    caps = [(32, 96), (32, 112), (32, 128), (64, 128), (64, 168), (64, 208)]
    tiles = [Launch(variant="tiles", block_time=time, registers=registers) for time, registers in caps]
    # Warps, steps of each, tiles of a link, and registers.
    links = [(4, 64, 16, 168), (4, 64, 32, 168), (4, 32, 16, 96), (4, 32, 32, 128), (8, 32, 16, 96), (8, 64, 16, 168)]
    chains = [
        Launch(variant="chain", block_time=warps * height, groups=warps, group=link, registers=registers, warps=warps)
        for warps, height, link, registers in links
    ]
    return {" ".join(f"{key}={value}" for key, value in asdict(launch).items()): always(launch) for launch in (*streams, *walks, *chains, *tiles)}


def launches(length: int, sweep: bool) -> dict[str, Kernel]:
    kernels = {
        "stream": lambda costate: streaming(itemsize=4, costate=costate),
        "walk": always(walking(itemsize=4)),
        "chain": lambda costate: in_chain(length, itemsize=4, costate=costate),
        "tiles": always(in_tiles(itemsize=4)),
    }
    return kernels | (sweep_of() if sweep else {})


def chosen(shape: tuple[int, int, int]) -> str:
    """Which kernel is launched where nobody says which."""
    rows, length, size = shape
    return launch_for(rows, length, rows * length, size, itemsize=4, processors=processors(torch.device("cuda"))).variant


def compiled(job: tuple[tuple[int, int, int], bool, list[str]]) -> str:
    """Compile in a process of its own what one shape needs, which leaves it in Triton's cache."""
    shape, sweep, without = job
    contestants = everybody(shape, sweep, without)
    try:
        for runs in contestants.values():
            for run in runs.values():
                run()
        torch.cuda.synchronize()
    except Exception as failure:
        return f"{shape}: {type(failure).__name__}: {str(failure).partition(chr(10))[0]}"
    return ""


def everybody(shape: tuple[int, int, int], sweep: bool, without: list[str]) -> dict[str, dict[str, Run]]:
    tensors = inputs(shape)
    contestants: dict[str, dict[str, Run]] = {name: ours(*tensors, launch) for name, launch in launches(shape[1], sweep).items()}
    contestants["maps * terms"] = {"forward": lambda: torch.mul(tensors[0].detach(), tensors[1].detach())}
    return contestants | {name: peer(function, *tensors) for name, function in peers(without).items()}


def blocks(shape: tuple[int, int, int]) -> dict[str, dict[str, Run]]:
    rows, length, channels = shape
    torch.manual_seed(0)
    maps = (0.5 * torch.randn(rows, length, 2, 2, channels, device="cuda")).requires_grad_()
    terms = torch.randn(rows, length, 2 * channels, device="cuda", requires_grad=True)
    grad = torch.randn_like(terms)

    def of(backend: str) -> dict[str, Run]:
        def forward() -> Tensor:
            with torch.no_grad():
                return scan(BlockDiagonal(maps), terms, backend=backend)

        return {"forward": forward, "both": lambda: torch.autograd.grad(scan(BlockDiagonal(maps), terms, backend=backend), (maps, terms), grad)}

    return {"blocks": of("triton")}


def error_of(states: Tensor, maps: Tensor, terms: Tensor) -> float:
    few = [tensor[:, :, :COMPARED].detach().double() for tensor in (maps, terms)]
    expected = scan(Diagonal(few[0]), few[1], backend="torch")
    return ((states[:, :, :COMPARED].double() - expected).abs().max() / expected.abs().max()).item()


def measured(contestants: dict[str, dict[str, Run]], what: Iterable[str]) -> dict[str, dict[str, object]]:
    """Microseconds of each contestant, medians of rounds in which all of them run; or why one failed."""
    times: dict[str, dict[str, list[float]]] = {name: {} for name in contestants}
    failed: dict[str, str] = {}
    for kind in what:
        graphs, pool = {}, torch.cuda.graph_pool_handle()
        for name, runs in contestants.items():
            if kind not in runs:
                continue
            try:
                graphs[name] = graphed(runs[kind], pool)
            except Exception as failure:
                failed[name] = f"{kind}: {type(failure).__name__}: {str(failure).partition(chr(10))[0]}"
                torch.cuda.synchronize()
        for _ in range(ROUNDS):
            for name, graph in graphs.items():
                times[name].setdefault(kind, []).append(microseconds(graph))
        graphs.clear()
        torch.cuda.empty_cache()
    rows: dict[str, dict[str, object]] = {name: {f"{kind}_us": median(found) for kind, found in kinds.items()} for name, kinds in times.items()}
    return {name: row | ({"failed": failed[name]} if name in failed else {}) for name, row in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "gpu_scan.json")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--shapes", nargs="*", type=lambda text: tuple(int(part) for part in text.split(",")), default=SHAPES)
    parser.add_argument("--without", nargs="*", default=[], metavar="PEER")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    # One row of them takes the same kernels.
    small = [(1, length, size) for _, length, size in arguments.shapes]
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for failure in pool.imap_unordered(compiled, [(shape, arguments.sweep, arguments.without) for shape in small]):
            if failure:
                print(failure)
    speed = copy_speed()
    print(f"{torch.cuda.get_device_name()}, copy {speed / 1e6:.2f} TB/s", flush=True)
    facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__, "copy_tb_per_s": speed / 1e6}
    rows: list[dict[str, object]] = []
    for shape in arguments.shapes:
        contestants = everybody(shape, arguments.sweep, arguments.without)
        rows += reported(shape, contestants, speed, (FORWARD_BYTES, BOTH_BYTES))
        maps, terms, _ = inputs(shape)
        for row in rows[-len(contestants) :]:
            row["aims"] = AIMS.get(shape)
            row["chosen"] = row["name"] == chosen(shape)
            if row["name"] in launches(shape[1], arguments.sweep):
                row["error"] = error_of(contestants[str(row["name"])]["forward"](), maps, terms)
        del contestants, maps, terms
        torch.cuda.empty_cache()
        save(rows, facts, arguments.json)
    for shape in BLOCK_SHAPES:
        rows += reported(shape, blocks(shape), speed, (BLOCK_FORWARD_BYTES, BLOCK_BOTH_BYTES))
    save(rows, facts, arguments.json)


def save(rows: list[dict[str, object]], facts: dict[str, object], target: Path) -> None:
    """What is measured so far, as numbers and as a table."""
    target.write_text(json.dumps(facts | {"missing": MISSING, "rows": rows}, indent=2) + "\n")
    target.with_suffix(".md").write_text(table(rows, facts))


def reported(shape: tuple[int, int, int], contestants: dict[str, dict[str, Run]], speed: float, counts: tuple[int, int]) -> list[dict[str, object]]:
    """A row for each contestant: microseconds, and the share of what the bytes it must move would take at the speed of a copy."""
    elements = shape[0] * shape[1] * shape[2]
    rows = []
    for name, found in measured(contestants, ("forward", "both")).items():
        shares = {}
        for kind, count in zip(("forward", "both"), counts, strict=True):
            if f"{kind}_us" in found:
                shares[f"{kind}_percent"] = 100 * count * elements / speed / found[f"{kind}_us"]
        rows.append({"shape": shape, "name": name} | found | shares)
        print("  ".join(f"{key}={value:.3g}" if isinstance(value, float) else f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    return rows


def table(rows: list[dict[str, object]], facts: dict[str, object]) -> str:
    lines = [
        f"{facts['device']}, torch {facts['torch']}, Triton {facts['triton']}; a copy moves {facts['copy_tb_per_s']:.2f} TB/s.",
        "Microseconds, and the share of what a copy of as many bytes takes; * is what `auto` launches.",
        "",
        "| shape (B, T, D) | | forward | | forward+backward | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        keys = [(f"{kind}_{what}", unit) for kind in ("forward", "both") for what, unit in (("us", ""), ("percent", "%"))]
        cells = [f"{row[key]:.0f}{unit}" if key in row else "-" for key, unit in keys]
        lines.append(f"| {row['shape']} | {row['name']}{'*' if row.get('chosen') else ''} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
