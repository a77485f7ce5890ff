"""Cauchy and Vandermonde products on a GPU: time forward and backward, peak memory and error of every backend, and of the lrnnx CUDA extension.

    python docs/benchmarks/gpu_s4.py [--backends triton cuda blocked naive] [--peer FOLDER] [--json FILE]

Single precision; H copies, N half state, L steps or nodes. Medians of three rounds, in each of which every contestant runs in turn and gives the
median of repeated runs with a cleared cache (`triton.testing.do_bench`); short runs are bound by the host, whose speed varies. FOLDER is
`csrc/s4` of an unpacked lrnnx (1.0.0.post1); its extension is built on first use, with an include that newer versions of torch lack
replaced. Peak memory is that of forward and backward beyond the inputs, and its ratio to inputs, outputs and gradients.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import ModuleType

import torch
from torch import Tensor
from triton.testing import do_bench

import pararnn_s4
from pararnn.errors import ParaRNNError

SHAPES = [(256, 32, 1024), (256, 32, 4096), (256, 32, 16384), (512, 32, 65536)]
BACKENDS = ("auto", "triton", "cuda", "blocked", "naive")
ROUNDS = 3


class _Peer(torch.autograd.Function):
    """An operation of the extension with its hand-written backward, as the peer wraps it."""

    @staticmethod
    def forward(ctx, forward, backward, *arguments):
        ctx.backward_function = backward
        ctx.save_for_backward(*(value for value in arguments if isinstance(value, Tensor)))
        return forward(*arguments)

    @staticmethod
    def backward(ctx, cotangent):
        by_first, by_last = ctx.backward_function(*ctx.saved_tensors, cotangent)
        return (None, None, by_first, None, by_last) if len(ctx.saved_tensors) == 3 else (None, None, by_first, by_last, None)


def build_peer(folder: Path) -> ModuleType:
    from torch.utils.cpp_extension import load

    copy = Path(tempfile.mkdtemp())
    for file in folder.iterdir():
        if file.is_file():
            shutil.copy(file, copy)
    kernel = copy / "cauchy_cuda.cu"
    kernel.write_text(kernel.read_text().replace("THC/THCAtomics.cuh", "ATen/cuda/Atomic.cuh"))
    return load(
        name="structured_kernels",
        sources=[str(copy / "cauchy.cpp"), str(kernel)],
        extra_include_paths=[str(copy)],
        extra_cflags=["-O3"],
        extra_cuda_cflags=["-O2", "-lineinfo", "--use_fast_math"],
    )


def inputs(copies: int, state: int, length: int) -> dict[str, Tensor]:
    torch.manual_seed(0)
    rates = -0.5 + 1j * math.pi * torch.arange(state, device="cuda")
    dt = torch.exp(torch.rand(copies, 1, device="cuda") * 4.6 - 6.9)
    v = torch.randn(copies, state, dtype=torch.cfloat, device="cuda")
    turns = torch.arange(length, device="cuda", dtype=torch.float64) / (2 * length)
    nodes = (2j * torch.tan(math.pi * turns)).to(torch.cfloat)
    return {"v": v, "x": (dt * rates).to(torch.cfloat), "z": nodes, "w": (dt * rates).to(torch.cfloat)}


def error_of(run: Callable[..., Tensor], op: str, tensors: dict[str, Tensor], length: int) -> float:
    """The largest error of 16 copies against the definition in float64, relative to the largest value."""
    few = {name: tensor if name == "z" else tensor[:16] for name, tensor in tensors.items()}
    exact = {name: tensor.to(torch.cdouble) for name, tensor in few.items()}
    expected = call(op, exact, length, "naive")
    return ((run(few).to(expected.dtype) - expected).abs().max() / expected.abs().max()).item()


def call(op: str, tensors: dict[str, Tensor], length: int, backend: str) -> Tensor:
    if op == "vandermonde":
        return pararnn_s4.vandermonde(tensors["v"], tensors["x"], length, backend=backend)
    return pararnn_s4.cauchy(tensors["v"], tensors["z"], tensors["w"], backend=backend)


def measure(run: Callable[[dict[str, Tensor]], Tensor], op: str, tensors: dict[str, Tensor], length: int) -> dict[str, float]:
    names = ("v", "x") if op == "vandermonde" else ("v", "w")
    row = {"error": error_of(run, op, tensors, length)}
    row["forward_us"] = do_bench(lambda: run(tensors), warmup=20, rep=100, return_mode="median") * 1e3
    leaves = tensors | {name: tensors[name].clone().requires_grad_() for name in names}
    output = run(leaves)
    cotangent = torch.randn_like(output)
    needed = sum(2 * leaves[name].nbytes for name in names) + 2 * output.nbytes
    del output

    def both() -> None:
        for name in names:
            leaves[name].grad = None
        run(leaves).backward(cotangent)

    both()
    row["both_us"] = do_bench(both, warmup=20, rep=100, return_mode="median") * 1e3
    for name in names:
        leaves[name].grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    both()
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before
    # The inputs and the cotangent are there before; everything counted once makes a ratio of one the least that is possible.
    held = sum(leaves[name].nbytes for name in names) + cotangent.nbytes
    return row | {"peak_mib": extra / 2**20, "peak_ratio": (extra + held) / needed}


def rounds_of(
    runs: dict[str, Callable[[dict[str, Tensor]], Tensor]], op: str, tensors: dict[str, Tensor], length: int
) -> dict[str, dict[str, object]]:
    """The medians of all rounds for each contestant, with every round's figures; or why it failed."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    failed: dict[str, str] = {}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            if name in failed:
                continue
            try:
                found[name].append(measure(run, op, tensors, length))
            except (ParaRNNError, torch.OutOfMemoryError) as failure:
                failed[name] = str(failure).partition("\n")[0]
            torch.cuda.empty_cache()
    medians = {name: {key: median(row[key] for row in rows) for key in rows[0]} | {"rounds": rows} for name, rows in found.items() if rows}
    return {name: medians[name] if name not in failed else {"failed": failed[name]} for name in runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="*", default=list(BACKENDS))
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    peer = build_peer(arguments.peer) if arguments.peer else None
    if "cuda" in arguments.backends:
        pararnn_s4.build_cuda_kernels()
    rows = []
    for op in ("vandermonde", "cauchy"):
        for copies, state, length in SHAPES:
            tensors = inputs(copies, state, length)
            runs = {}
            if peer is not None and op == "vandermonde":
                runs["lrnnx CUDA"] = lambda t, n=length: _Peer.apply(peer.vand_log_mult_sym_fwd, peer.vand_log_mult_sym_bwd, t["v"], t["x"], n)
            elif peer is not None:
                runs["lrnnx CUDA"] = lambda t: _Peer.apply(peer.cauchy_mult_sym_fwd, peer.cauchy_mult_sym_bwd, t["v"], t["z"], t["w"])
            for backend in arguments.backends:
                runs[backend] = lambda t, op=op, n=length, backend=backend: call(op, t, n, backend)
            for name, rounds in rounds_of(runs, op, tensors, length).items():
                rows.append({"op": op, "shape": (copies, state, length), "name": name} | rounds)
                print(rows[-1], flush=True)
    if arguments.json:
        facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
        arguments.json.write_text(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
