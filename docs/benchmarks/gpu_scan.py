"""The diagonal scan on a GPU: share of the memory limit, forward and forward+backward, of each kernel and of the peers that can be imported.

    python docs/benchmarks/gpu_scan.py [--json FILE] [--sweep] [--shapes B,T,D ...]

Single precision. Every contestant runs as a CUDA graph under `triton.testing.do_bench`, which clears the cache between runs; medians of three rounds,
in each of which all contestants of a shape run in turn. The limit is what a copy of 8 GiB reaches in the same run, over the bytes that must be moved:
12 an element forward (two read, one written), 20 more backward (maps, states and gradient read, two gradients written). Peers get their own
layout, `(B, D, T)` contiguous, and are left out where they do not support a shape. `--sweep` tries other sizes of tiles and names the best.
Errors are those of the first channels against plain PyTorch in double precision, relative to the largest state.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from triton.testing import do_bench

from pararnn import Diagonal, scan
from pararnn.scans import triton_backend
from pararnn.scans.launches import Launch, group_of, in_chunks, looking_back, walking

SHAPES = [(8, 4096, 1536), (32, 8192, 1024), (1, 65536, 512), (1, 131072, 64), (8, 2048, 256)]
# Shares of the limit that are aimed at: forward, forward and backward.
AIMS = {(8, 4096, 1536): (90, 85), (32, 8192, 1024): (90, 85), (1, 65536, 512): (80, None), (1, 131072, 64): (60, None), (8, 2048, 256): (60, None)}
FORWARD_BYTES, BOTH_BYTES = 12, 32
ROUNDS = 3
COMPARED = 4

Run = Callable[[], object]


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
    return do_bench(run, warmup=10, rep=60, return_mode="median") * 1e3


def copy_speed() -> float:
    """Bytes a microsecond, counting what is read and what is written."""
    source = torch.empty(1 << 30, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / microseconds(lambda: target.copy_(source))


@contextmanager
def forced(launch: Launch | None) -> Iterator[None]:
    """Every scan in the block uses `launch`."""
    chosen = triton_backend.launch_for
    if launch is not None:
        triton_backend.launch_for = lambda *_, **__: launch
    try:
        yield
    finally:
        triton_backend.launch_for = chosen


def inputs(shape: tuple[int, int, int]) -> list[Tensor]:
    torch.manual_seed(0)
    maps = 0.9 + 0.1 * torch.rand(shape, device="cuda")
    return [maps.requires_grad_(), torch.randn(shape, device="cuda", requires_grad=True), torch.randn(shape, device="cuda")]


def ours(maps: Tensor, terms: Tensor, grad: Tensor, launch: Launch | None) -> dict[str, Run]:
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


def peers() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """What can be imported, by name; each takes maps and terms `(B, D, T)`."""
    found: dict[str, Callable[[Tensor, Tensor], Tensor]] = {}
    names = {
        "accelerated-scan (Triton)": ("accelerated_scan.scalar", "scan"),
        "accelerated-scan (CUDA)": ("accelerated_scan.warp", "scan"),
        "fpscan": ("fpscan.ops", "pscan"),
        "philtorch": ("philtorch", "__version__"),
    }
    for name, (module, attribute) in names.items():
        try:
            found[name] = getattr(importlib.import_module(module), attribute)
        except Exception as failure:
            print(f"{name} cannot be imported: {type(failure).__name__}: {str(failure).partition(chr(10))[0]}")
    if "philtorch" in found:
        found["philtorch"] = philtorch_scan
    return found


def philtorch_scan(maps: Tensor, terms: Tensor) -> Tensor:
    flat = terms.flatten(0, 1)
    return torch.ops.philtorch.scan(flat, maps.flatten(0, 1), flat.new_zeros(flat.shape[0])).view_as(terms)


def sweep_of(shape: tuple[int, int, int]) -> dict[str, Launch]:
    """Launches worth trying, by what tells them apart."""
    _, length, _ = shape
    walks = [
        Launch(variant="walk", block_time=time, block_state=state, warps=warps, stages=stages)
        for (time, state, warps), stages in itertools.product([(16, 32, 1), (32, 32, 1), (32, 64, 2), (64, 32, 2), (16, 64, 1)], (2, 3, 4))
    ]
    backs = [
        Launch(variant="lookback", block_time=time, block_state=state, warps=warps, group=group_of(length, time), registers=registers)
        for time, state, warps, registers in (
            (128, 32, 8, 128),
            (128, 32, 4, None),
            (64, 64, 8, 128),
            (64, 32, 4, 128),
            (256, 32, 16, 128),
            (256, 32, 8, None),
            (128, 64, 16, 128),
            (256, 16, 8, 128),
        )
    ]
    chunks = [
        Launch(
            variant="chunks",
            block_time=time,
            block_state=32,
            warps=warps,
            stages=stages,
            tiles=steps // time,
            group=group_of(length, steps),
            registers=registers,
        )
        for (time, warps, registers), steps, stages in itertools.product([(32, 4, 128), (32, 2, 168), (32, 4, 80)], (128, 256, 512), (2, 4))
    ]
    return {" ".join(f"{key}={value}" for key, value in asdict(launch).items()): launch for launch in (*walks, *backs, *chunks)}


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
    arguments = parser.parse_args()
    speed = copy_speed()
    print(f"{torch.cuda.get_device_name()}, copy {speed / 1e6:.2f} TB/s")
    others = peers()
    rows = []
    for shape in arguments.shapes:
        maps, terms, grad = inputs(shape)
        _, length, size = shape
        launches = {"auto": None, "walk": walking(size, itemsize=4), "look back": looking_back(length, size, itemsize=4)}
        launches["chunks"] = in_chunks(length, size, itemsize=4)
        contestants = {name: ours(maps, terms, grad, launch) for name, launch in (launches | (sweep_of(shape) if arguments.sweep else {})).items()}
        contestants |= {name: peer(function, maps, terms, grad) for name, function in others.items()}
        limits = {"forward": FORWARD_BYTES * maps.numel() / speed, "both": BOTH_BYTES * maps.numel() / speed}
        for name, found in measured(contestants, ("forward", "both")).items():
            row = {"shape": shape, "name": name, "aims": AIMS.get(shape)} | found
            row |= {f"{kind}_percent": 100 * limit / found[f"{kind}_us"] for kind, limit in limits.items() if f"{kind}_us" in found}
            if name in launches and "failed" not in found:
                row["error"] = error_of(contestants[name]["forward"](), maps, terms)
            rows.append(row)
            print("  ".join(f"{key}={value:.3g}" if isinstance(value, float) else f"{key}={value}" for key, value in row.items()), flush=True)
        del contestants, maps, terms, grad
        torch.cuda.empty_cache()
    facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "copy_tb_per_s": speed / 1e6, "rows": rows}
    arguments.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
