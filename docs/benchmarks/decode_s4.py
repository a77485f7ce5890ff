"""Decoding with S4 and S4D: one step of each form, against a convolution of the whole prefix for its last output.

    python docs/benchmarks/decode_s4.py --json docs/benchmarks/results/decode_s4.json

Float32, one thread on a CPU; with `--device cuda` on a GPU, where a step is also replayed as a CUDA graph. Layers of 128 features and 64 numbers a
state, without gradients. A step costs the same after any prefix, a convolution grows with it; the difference of their last outputs is
given beside the times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
from machine import environment, machine
from report import Table, milliseconds, progress, publish, ratio
from rich.console import Console
from torch import Tensor
from worker import turn

from pararnn.errors import ConfigError
from pararnn_s4 import S4, S4D

Call = Callable[[], object]
LAYERS = {"S4D": S4D, "S4": S4}
FEATURES, STATE = 128, 64
BATCHES = (1, 16)
PREFIXES = (256, 1024, 4096, 16384, 65536)
MODES = ("linear", "dense", "diagonal")
STEP, GRAPH = "step", "decoder, linear, CUDA graph"
PAUSE_SECONDS = 0.02
SECONDS_A_TURN = 0.2


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--device", default="cpu", show_default=True, help="Where to measure: cpu or cuda.")
@click.option("--rounds", default=7, show_default=True, help="Turns of each contestant.")
@click.option("--quick", is_flag=True, help="Short prefixes, two rounds: shows that it runs, measures nothing.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write raw numbers here and tables beside it (.md).")
def main(device: str, rounds: int, quick: bool, json_path: Path | None) -> None:
    """Measure every layer and batch, and publish."""
    torch.set_num_threads(1)
    console = Console()
    prefixes, batches, rounds = ((64, 256), (1,), 2) if quick else (PREFIXES, BATCHES, rounds)
    results: dict[str, Any] = {"machine": machine(), "quick": quick, "rounds": rounds, "device": _name_of(device), "cases": {}}
    with torch.no_grad(), progress(console) as bar:
        task = bar.add_task("", total=len(LAYERS) * len(batches) * rounds)
        for name in LAYERS:
            for batch in batches:
                calls, difference = contestants(name, batch, prefixes, device)
                raw: dict[str, list[float]] = {call: [] for call in calls}
                for call in calls.values():
                    turn(call, calls=3, seconds=SECONDS_A_TURN)
                for _ in range(rounds):
                    for label, call in calls.items():
                        time.sleep(PAUSE_SECONDS)
                        raw[label] += turn(call, calls=100, seconds=SECONDS_A_TURN)
                    bar.update(task, advance=1, description=f"{name}, batch {batch}", refresh=True)
                found = {"ms": raw, "median_ms": {label: median(values) for label, values in raw.items()}, "difference": difference}
                results["cases"][f"{name}, batch {batch}"] = found
    results["environment"] = environment("pararnn-core", "pararnn-s4")
    publish([steps_table(results), prefixes_table(results, prefixes)], results, console, json_path)


def contestants(name: str, batch: int, prefixes: tuple[int, ...], device: str) -> tuple[dict[str, Call], float]:
    """The calls to time by label, and how far the last output of stepping is from that of a convolution, for the shortest prefix."""
    torch.manual_seed(0)
    layer = LAYERS[name](FEATURES, STATE, method="convolution").to(device).eval()
    x = torch.randn(batch, max(prefixes), FEATURES, device=device)
    sample, settle = x[:, 0].contiguous(), torch.cuda.synchronize if device == "cuda" else _nothing
    calls: dict[str, Call] = {}

    def settled(call: Call) -> Call:
        def measured() -> None:
            call()
            settle()

        return measured

    first = layer.init_state(batch)
    calls[STEP] = settled(lambda: layer.step(sample, first))
    for mode in MODES if name == "S4" else MODES[:1]:
        try:
            decoder = layer.decoder(mode)
        except ConfigError:
            continue
        begin = decoder.init_state(batch)
        calls[f"decoder, {mode}"] = settled(lambda decoder=decoder, begin=begin: decoder.step(sample, begin))
    decoder = layer.decoder()
    if device == "cuda":
        calls[GRAPH] = settled(_graph(decoder.step, sample, first))
    for length in prefixes:
        calls[str(length)] = settled(lambda length=length: layer(x[:, :length]))
    state, output = decoder.init_state(batch), sample
    for t in range(min(prefixes)):
        output, state = decoder.step(x[:, t], state)
    return calls, float((output - layer(x[:, : min(prefixes)])[:, -1]).abs().max())


def steps_table(results: dict[str, Any]) -> Table:
    """One step of each form."""
    labels = list(dict.fromkeys(label for found in results["cases"].values() for label in found["ms"] if not label.isdigit()))
    table = Table(f"one step, ms, {FEATURES} features, d_state={STATE}, {results['device']}", ["layer", *labels, "difference"])
    for case, found in results["cases"].items():
        table.add(case, *(milliseconds(found["median_ms"].get(label)) for label in labels), f"{found['difference']:.1e}")
    return table


def prefixes_table(results: dict[str, Any], prefixes: tuple[int, ...]) -> Table:
    """A convolution of the whole prefix, and how many times it takes as long as the fastest step."""
    table = Table("convolution of the whole prefix, ms (and over the fastest step)", ["layer", *map(str, prefixes)])
    for case, found in results["cases"].items():
        times = found["median_ms"]
        fastest = min(value for label, value in times.items() if not label.isdigit())
        table.add(case, *(f"{milliseconds(times[str(length)])} ({ratio(times[str(length)], fastest)})" for length in prefixes))
    return table


def _graph(step: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], sample: Tensor, state: Tensor) -> Call:
    """A step recorded as a CUDA graph that feeds its state back to itself."""
    held, warm = state.clone(), torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        for _ in range(3):
            step(sample, held)
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held.copy_(step(sample, held)[1])
    return graph.replay


def _name_of(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "CPU, one thread"


def _nothing() -> None:
    """A CPU has nothing to wait for."""


if __name__ == "__main__":
    main()
