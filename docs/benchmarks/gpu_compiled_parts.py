"""Our side of `gpu_compiled.py`: a row of figures for one case of each part."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import torch
from gpu_timing import FEATURES, Shape, graph_row, graphed, inputs, layer_row, looped, microseconds, recorded_row, recover, runs_of, step_us

from pararnn import NewtonConfig, ParaCfC, ParaRNN
from pararnn.solver.api import cell_problem, run
from pararnn.solver.problem import Problem

# The cell of the test that proves the point: nothing in the packages knows it.
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
from min_gru import MinGRU

DECODED_SIZE = 256
CELLS = {"ParaCfC": ParaCfC, "MinGRU": MinGRU}
# Reads of two drives and a write of states; then of gradient, states and drives, and writes of two gradients.
FORWARD_BYTES, BOTH_BYTES = 12, 36
INTERVALS = (16, 64, 256)
COMPARED = 4


def layer_of(cell: str, size: int) -> ParaRNN:
    """A layer of the cell with weights that are the same each time."""
    torch.manual_seed(0)
    return ParaRNN(CELLS[cell](FEATURES + 1, size)).cuda()


def layer(cell: str, shape: Shape) -> dict[str, Any]:
    """The whole layer, projection and all."""
    batch, length, size = shape
    rnn, x, grad = layer_of(cell, size), inputs(batch, length), torch.randn(shape, device="cuda")
    row: dict[str, Any] = layer_row(rnn, x, grad, graphs=True) | recorded_row(rnn, x, grad)
    with torch.no_grad():
        output, (result,) = rnn.solve(x)
        row["projection_us"] = microseconds(lambda: rnn.layers[0].drive(x))
    row |= {"backend": result.backend, "plan": result.plan.explain(), "status": result.status.name, "iterations": result.iterations}
    if result.backend == "triton":
        # The whole length against the walk by the same engine; the beginning of it against PyTorch in double precision.
        rnn.config = NewtonConfig(interval=length)
        with torch.no_grad():
            row["walk_difference"] = float((rnn(x) - output).abs().max())
    return row | {"error": error_of(rnn, x, output)}


def error_of(rnn: ParaRNN, x: torch.Tensor, output: torch.Tensor) -> float:
    """The largest difference of the first steps of the first sequences to a walk in double precision in plain PyTorch."""
    few = x[:COMPARED, :512]
    walk = ParaRNN(rnn.layers[0], solver="sequential")
    with torch.no_grad():
        exact = walk.double()(few.double())
    walk.float()
    return float((output[:COMPARED, :512] - exact).abs().max())


def problem_of(shape: Shape) -> Problem:
    """What is left to solve of ParaCfC once the drive is there; the leaves along time require gradients."""
    batch, length, size = shape
    with torch.no_grad():
        problem = cell_problem(layer_of("ParaCfC", size).layers[0], inputs(batch, length), NewtonConfig())
    for leaf in problem.drive:
        leaf.requires_grad_(leaf.ndim == 3)
    return problem


def solve(shape: Shape, speed: float) -> dict[str, Any]:
    """The solve without its projection, as a share of the memory limit."""
    problem, elements = problem_of(shape), math.prod(shape)
    sources, grad = [leaf for leaf in problem.drive if leaf.ndim == 3], torch.randn(shape, device="cuda")
    runs = runs_of(lambda: run(problem, NewtonConfig()).states, sources, grad)
    row: dict[str, Any] = {**graph_row(runs), "forward_looped_us": looped(runs["forward"])}
    for what, moved in (("forward", FORWARD_BYTES), ("both", BOTH_BYTES)):
        row[f"{what}_limit_us"] = moved * elements / speed
        if f"{what}_graph_us" in row:
            row[f"{what}_percent"] = 100 * row[f"{what}_limit_us"] / row[f"{what}_graph_us"]
    return row


def plan(shape: Shape) -> dict[str, Any]:
    """The solve with every fixed interval, against what the planner takes; forward, as CUDA graphs."""
    problem, times, missing = problem_of(shape), {}, {}
    for interval in ("auto", shape[1], *(interval for interval in INTERVALS if interval < shape[1])):
        config, label = NewtonConfig(interval=interval), "walk" if interval == shape[1] else str(interval)

        def solved(config: NewtonConfig = config) -> object:
            with torch.no_grad():
                return run(problem, config)

        try:
            times[label] = microseconds(graphed(solved), rep=30)
        except Exception as failure:
            missing[label] = f"{type(failure).__name__}: {failure}".partition("\n")[0]
            recover()
    with torch.no_grad():
        planned = run(problem, NewtonConfig()).plan.explain()
    return {"us": times, "planned": planned} | ({"missing": missing} if missing else {})


def decoding(cell: str, batch: int) -> dict[str, Any]:
    """A step of one layer: a decoder that replays, one that launches, and `ParaRNN.step`."""
    rnn, x = layer_of(cell, DECODED_SIZE), inputs(batch, 1)[:, 0].contiguous()
    row: dict[str, Any] = {"state": DECODED_SIZE}
    with torch.no_grad():
        replayed, launched = rnn.decoder(batch), rnn.decoder(batch, graph="never")
        for key, decoder in (("graph_us", replayed), ("launched_us", launched)):
            decoder.step(x)
            row[key] = step_us(lambda decoder=decoder: decoder.step(x))
        row["replay_us"] = step_us(replayed.step)
        states = rnn.initial_state(batch)
        row["step_us"] = step_us(lambda: rnn.step(x, states))
    return row | {"explain": replayed.explain()}


def prepare(cell: str, shape: Shape) -> None:
    """Run once whatever is measured of a cell at a shape: what has to be compiled is in the caches then."""
    batch, length, size = shape
    rnn, x = layer_of(cell, size), inputs(batch, length)
    torch.autograd.grad(rnn(x).sum(), list(rnn.parameters()))
    rnn.decoder(1).step(x[:1, 0].contiguous())
    with torch.no_grad():
        rnn.config = NewtonConfig(interval=length)
        rnn(x)
        if cell == "ParaCfC":
            problem = problem_of(shape)
            for interval in ("auto", length, *(interval for interval in INTERVALS if interval < length)):
                run(problem, NewtonConfig(interval=interval))
    if cell == "ParaCfC":
        sources = [leaf for leaf in problem.drive if leaf.ndim == 3]
        torch.autograd.grad(run(problem, NewtonConfig()).states.sum(), sources)
    torch.cuda.synchronize()


if __name__ == "__main__":
    name, *sizes = sys.argv[1:]
    prepare(name, (int(sizes[0]), int(sizes[1]), int(sizes[2])))
