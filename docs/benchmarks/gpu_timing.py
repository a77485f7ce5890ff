"""Times and memory of calls on a GPU. Torch and triton only: the peer's process imports it too."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from triton.testing import do_bench

Run = Callable[[], object]
Shape = tuple[int, int, int]
# Sequences, steps, channels.
SHAPES: list[Shape] = [(8, 512, 64), (64, 1024, 64), (8, 2048, 256), (8, 4096, 256), (1, 131072, 64), (1, 131072, 256), (32, 8192, 1024)]
BATCHES = (1, 8, 64, 256, 1024)
FEATURES = 8
LOOPED = 20
DECODED_STEPS = 300


def inputs(batch: int, length: int) -> Tensor:
    """Eight random features and a time gap of 0.05 to 1.05, `(batch, length, 9)`, the same for every contestant."""
    generator = torch.Generator(device="cuda").manual_seed(1)
    x = torch.randn(batch, length, FEATURES + 1, device="cuda", generator=generator)
    x[..., -1] = 0.05 + torch.rand(batch, length, device="cuda", generator=generator)
    return x


def microseconds(run: Run, rep: int = 60) -> float:
    """The median by events on the device, the cache cleared before each call: what its kernels take, and gaps between them."""
    return do_bench(run, warmup=10, rep=rep, return_mode="median") * 1e3


def looped(run: Run) -> float:
    """Microseconds of a call among `LOOPED` that follow each other, by the clock: what a training loop feels, launches on the host included.

    The best of three loops.
    """
    once = _clocked(run, 1)
    # A call of many milliseconds hides its launches; a few of them are enough.
    return min(_clocked(run, LOOPED if once < 5000 else 2) for _ in range(3))


def graphed(run: Run) -> Run:
    """The run as a CUDA graph; three runs before it compile what has to be compiled."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def recorded_row(layer: nn.Module, x: Tensor, grad: Tensor) -> dict[str, float | str]:
    """Microseconds of calls, as those of `layer_row`, of a copy that `torch.cuda.make_graphed_callables` recorded; or why it could not be."""
    try:
        recorded = torch.cuda.make_graphed_callables(copy.deepcopy(layer), (torch.rand_like(x),))
    except Exception as failure:
        recover()
        return {"recorded_failed": f"{type(failure).__name__}: {str(failure).partition(chr(10))[0]}"}
    row: dict[str, float | str] = {}
    for what, run in runs_of(lambda: recorded(x), list(recorded.parameters()), grad).items():
        run()
        row[f"{what}_recorded_us"], row[f"{what}_recorded_looped_us"] = microseconds(run), looped(run)
    return row


def recover() -> None:
    """After a graph that could not be recorded: torch then stays on the stream of the recording, and its random generator waits for the end of it."""
    torch.cuda.set_stream(torch.cuda.default_stream())
    torch.cuda.synchronize()
    graphed(lambda: torch.zeros(1, device="cuda"))


def peak_mib(run: Run) -> float:
    """MiB that are allocated at the highest while `run` runs, beyond what was before."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def copy_speed() -> float:
    """Bytes a microsecond of a copy, counting what is read and what is written."""
    source = torch.empty(1 << 30, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / microseconds(lambda: target.copy_(source))


def runs_of(call: Callable[[], Tensor], sources: Sequence[Tensor], grad: Tensor) -> dict[str, Run]:
    """Forward without gradients, and forward and backward to `sources` from the output gradient `grad`."""

    def forward() -> Tensor:
        with torch.no_grad():
            return call()

    return {"forward": forward, "both": lambda: torch.autograd.grad(call(), sources, grad, allow_unused=True)}


def layer_row(layer: nn.Module, x: Tensor, grad: Tensor, *, graphs: bool) -> dict[str, float | str]:
    """All figures of a layer over `x`: microseconds eager, looped and, where it has `graphs`, as CUDA graphs; the peak of forward and backward."""
    row: dict[str, float | str] = {}
    runs = runs_of(lambda: layer(x), list(layer.parameters()), grad)
    for what, run in runs.items():
        run()
        row[f"{what}_us"], row[f"{what}_looped_us"] = microseconds(run), looped(run)
    row["peak_mib"] = peak_mib(runs["both"])
    return row | (graph_row(runs) if graphs else {})


def graph_row(runs: dict[str, Run]) -> dict[str, float | str]:
    """Microseconds of each run as a CUDA graph, or why there is none."""
    row: dict[str, float | str] = {}
    for what, run in runs.items():
        try:
            graph = graphed(run)
        except Exception as failure:
            row[f"{what}_graph_failed"] = f"{type(failure).__name__}: {str(failure).partition(chr(10))[0]}"
            recover()
            continue
        row[f"{what}_graph_us"] = microseconds(graph)
    return row


def step_us(step: Run) -> float:
    """Microseconds of a decoding step among many, by the clock; the best of three loops."""
    return min(_clocked(step, DECODED_STEPS) for _ in range(3))


def _clocked(run: Run, calls: int) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / calls * 1e6
