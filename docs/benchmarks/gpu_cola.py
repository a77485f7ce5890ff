"""Learning online on a GPU: steps launched one by one against steps captured in a CUDA graph, and a stream of a million steps.

    python docs/benchmarks/gpu_cola.py --json docs/benchmarks/results/gpu_cola.json

A tanh network with 3 inputs and one output, float32 without TF32, squared error and a step of SGD at every time step, data on the device. Eager
`learner.step` of TBPTT1 and COLA, the same step captured in blocks of 1, 8 and 32, and TBPTT-1 written by hand with autograd (RNNCell, detach,
backward, optimizer). Contestants take turns of 320 steps; the rate is that of the median turn by the clock, GPU time the sum of its kernels.

The streams, a million steps with 64 units and a tenth of that with 1024: COLA, captured in blocks of 32, on random inputs that are made as it goes,
whose targets are their sum; memory is looked at ten times on the way.

Aims at a captured step at least 5 times as fast as the eager one with 1024 units and 256 samples, and at memory that stays where it was.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
from machine import MEBIBYTE, environment, machine
from report import Table, progress, publish, ratio
from rich.console import Console
from rich.progress import Progress
from stream_contestants import BY_HAND, INPUT, by_hand, data, learner_of, rule
from torch.profiler import ProfilerActivity, profile

from pararnn_cola import capture

Call = Callable[[], object]
SHAPES = ((1024, 256), (256, 64), (128, 32))
"""Units and samples."""
STREAMS = ((1024, 256, 0.1), (64, 16, 1.0))
"""Units, samples, and the share of the steps that are asked for: a step of the large network takes three times as long."""
BLOCKS = (1, 8, 32)
RULES = ("TBPTT1", "COLA")
STEPS = 320


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--rounds", default=7, show_default=True, help="Turns of each contestant.")
@click.option("--stream-steps", default=1_000_000, show_default=True, help="Length of the stream; 0 leaves it out.")
@click.option("--quick", is_flag=True, help="Small shapes, two rounds, a short stream: shows that it runs, measures nothing.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write raw numbers here and tables beside it (.md).")
def main(rounds: int, stream_steps: int, quick: bool, json_path: Path | None) -> None:
    """Measure rates in turns, then the streams, and publish."""
    torch.backends.cuda.matmul.allow_tf32 = False
    console = Console()
    shapes, streams, rounds = (((32, 8),), ((32, 8, 1.0),), 2) if quick else (SHAPES, STREAMS, rounds)
    stream_steps = min(stream_steps, 6400) if quick else stream_steps
    device = torch.cuda.get_device_name()
    results: dict[str, Any] = {"machine": machine(), "device": device, "quick": quick, "rounds": rounds, "cases": {}, "streams": {}}
    with progress(console) as bar:
        task = bar.add_task("", total=len(shapes) * rounds)
        for state, batch in shapes:
            bar.update(task, description=f"H={state}, B={batch}", refresh=True)
            results["cases"][f"H={state}, B={batch}"] = measure(contestants(state, batch), rounds, partial(advanced, bar, task))
    results["environment"] = environment("pararnn-core", "pararnn-cola")
    # The streams take minutes more; what is known by now is kept whatever becomes of them.
    publish([rates_table(results)], results, console, json_path)
    if not stream_steps:
        return
    with progress(console) as bar:
        task = bar.add_task("", total=len(streams) * 10)
        for state, batch, share in streams:
            bar.update(task, description=f"stream, H={state}, B={batch}", refresh=True)
            results["streams"][f"H={state}, B={batch}"] = stream(state, batch, round(share * stream_steps), partial(advanced, bar, task))
    publish([rates_table(results), streams_table(results)], results, console, json_path)


def advanced(bar: Progress, task: Any) -> None:
    """One unit of work is done."""
    bar.update(task, advance=1, refresh=True)


def contestants(state: int, batch: int) -> dict[str, Call]:
    """A turn of each: 320 steps on the same data."""
    inputs, targets = data(STEPS, batch, device="cuda")
    calls: dict[str, Call] = {BY_HAND: partial(by_hand(state, batch, update="step", device="cuda"), inputs, targets)}
    for name in RULES:
        calls[f"{name}, eager"] = partial(rule(name, state, update="step", device="cuda"), inputs, targets)
        for block in BLOCKS:
            captured = capture(learner_of(name, state, update="step", device="cuda"), inputs[0], targets[0], block=block)
            pieces = list(zip(inputs.split(block), targets.split(block), strict=True))

            def run(captured: Any = captured, pieces: list[Any] = pieces) -> None:
                for u, y in pieces:
                    captured.run(u, y)

            calls[f"{name}, block of {block}"] = run
    return calls


def measure(calls: dict[str, Call], rounds: int, done: Callable[[], None]) -> dict[str, Any]:
    """Milliseconds of all turns, steps a second of the median one, and GPU time."""
    raw: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        # The first turn finds kernels and fills the allocator; captured steps run uncaptured once.
        timed(call)
        timed(call)
    for _ in range(rounds):
        for name, call in calls.items():
            raw[name].append(timed(call))
        done()
    rates = {name: STEPS / median(times) * 1e3 for name, times in raw.items()}
    return {"turn_ms": raw, "steps_per_second": rates, "gpu_us": {name: gpu_microseconds(call) for name, call in calls.items()}}


def timed(call: Call) -> float:
    """Milliseconds of one turn by the clock, the device idle before and after."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3


def gpu_microseconds(call: Call) -> float:
    """The time of all kernels and copies of a turn, per step."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        call()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in recorded.key_averages()) / STEPS


def stream(state: int, batch: int, steps: int, done: Callable[[], None]) -> dict[str, Any]:
    """Ten looks at the memory of a stream of so many steps."""
    block = max(BLOCKS)
    learner = learner_of("COLA", state, update="step", device="cuda")
    generator = torch.Generator("cuda").manual_seed(0)

    def piece() -> tuple[torch.Tensor, torch.Tensor]:
        u = torch.randn(block, batch, INPUT, device="cuda", generator=generator)
        return u, u.sum(-1, keepdim=True)

    u, y = piece()
    captured = capture(learner, u[0], y[0], block=block)
    looks, begin = [], time.perf_counter()
    for part in range(10):
        torch.cuda.reset_peak_memory_stats()
        while learner.steps * 10 < (part + 1) * steps:
            loss = captured.run(*piece()).loss
        last = loss.mean().item()
        if not math.isfinite(last):
            raise ArithmeticError(f"the loss is {last} after {learner.steps} steps")
        allocated, peak = torch.cuda.memory_allocated() / MEBIBYTE, torch.cuda.max_memory_allocated() / MEBIBYTE
        looks.append({"steps": learner.steps, "allocated_mib": allocated, "peak_mib": peak, "resident_mib": resident_mib(), "loss": last})
        done()
    return {"looks": looks, "seconds": time.perf_counter() - begin}


def resident_mib() -> float:
    """What this process holds in host memory now; elsewhere than on Linux, at the highest."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MEBIBYTE
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmRSS")) / 1024


def rates_table(results: dict[str, Any]) -> Table:
    """Steps a second, what they are of the same rule's eager ones, and GPU time."""
    cases = results["cases"]
    heads = [head for case in cases for head in (f"{case}: steps/s", "eager x", "GPU us/step")]
    table = Table(f"one step with SGD, {results['device']}", ["", *heads])
    for name in next(iter(cases.values()))["steps_per_second"]:
        eager = name if name == BY_HAND else f"{name.partition(',')[0]}, eager"
        cells = []
        for case in cases.values():
            rates = case["steps_per_second"]
            cells += [f"{rates[name]:.0f}", ratio(rates[name], rates[eager]), f"{case['gpu_us'][name]:.1f}"]
        table.add(name, *cells)
    return table


def streams_table(results: dict[str, Any]) -> Table:
    """Memory along the streams."""
    table = Table(f"COLA in blocks of {max(BLOCKS)}, {results['device']}", ["", "steps", "allocated, MiB", "peak, MiB", "resident, MiB", "loss"])
    for name, found in results["streams"].items():
        for look in found["looks"]:
            memory = (f"{look[key]:.2f}" for key in ("allocated_mib", "peak_mib", "resident_mib"))
            table.add(name, look["steps"], *memory, f"{look['loss']:.4g}")
        table.add(name, f"{found['looks'][-1]['steps'] / found['seconds']:.0f} a second", *["-"] * 4)
    return table


if __name__ == "__main__":
    main()
