"""The exact gradient of an adaptive walk with few states kept: find the steps, then take them again in segments."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pararnn.transforms import inside_transform
from pararnn_nanode.integrate.alone import Alone
from pararnn_nanode.integrate.capture import Capture
from pararnn_nanode.integrate.controller import Controller
from pararnn_nanode.integrate.dense_output import collect, read
from pararnn_nanode.integrate.dopri5 import Step
from pararnn_nanode.integrate.steps import Cost, Problem, Watch, walk

Taken = tuple[float, float, float]


def taken(problem: Problem, x: Tensor, start: float, end: float, *, controller: Controller, cost: Cost, watch: Watch | None) -> list[Taken]:
    """Start, length and finish of all accepted steps, found without a graph."""
    alone = dataclasses.replace(problem, field=Alone(problem.field), lift=None)
    with torch.no_grad():
        return [step[:3] for step in walk(alone, x.detach(), start, end, controller=controller, cost=cost, watch=watch)]


def retake(problem: Problem, x: Tensor, slope: Tensor | None, record: Sequence[Taken]) -> Iterator[Step]:
    """The steps of a record, taken once more."""
    nodes = problem.nodes(x)
    jumps = frozenset(problem.jumps)
    for start, length, finish in record:
        if slope is None or start in jumps:
            slope = problem.slope(x, start, min(start, finish))
        step = problem.step(x, slope, nodes, start, length, finish)
        yield step
        x, slope = step.end, step.slopes[-1]


def checkpointed(
    problem: Problem, x: Tensor, times: Sequence[float], moves: Tensor | None, *, controller: Controller, cost: Cost, watch: Watch | None = None
) -> Tensor:
    """States `(times, *state)`; a backward pass holds the states of `sqrt(steps)` steps at a time."""
    if inside_transform():
        # Transforms cannot take saved tensors away, so every step stays on the graph.
        return collect(problem.pair, walk(problem, x, times[0], times[-1], controller=controller, cost=cost, watch=watch), x, times, moves)
    capture = Capture.of(problem.field)
    forward = True
    # On copies of the buffers, so that what counts evaluations or averages over them does so in the steps that count.
    record = capture.run_again(lambda: taken(problem, x, times[0], times[-1], controller=controller, cost=cost, watch=watch))
    # Every step is taken a second time below, and the slope at its start is computed where no step before has left it.
    openings = sum(k == 0 or step[0] in problem.jumps for k, step in enumerate(record))
    cost.nfe += len(record) * len(problem.pair.nodes) + openings

    def captured(segment: Callable[..., tuple[Tensor, ...]], x: Tensor, slope: Tensor | None) -> tuple[Tensor, ...]:
        """The segment with what the field held; for the second time, the buffers have their updates already."""
        if forward:
            return capture.run(segment, x, slope)
        capture.check_unchanged()
        return capture.run_again(segment, x, slope)

    size = max(1, math.isqrt(len(record)))
    pieces = [x.unsqueeze(0)]
    done = 1
    while moves is None and done < len(times) and times[done] == times[0]:
        pieces.append(pieces[0])
        done += 1
    slope: Tensor | None = None
    for begin in range(0, len(record), size):
        part = record[begin : begin + size]
        plan: list[tuple[int, int]] = []
        for _, length, finish in part:
            first = done
            while done < len(times) and (times[done] - finish) * length <= 0:
                done += 1
            plan.append((first, done))

        def segment(x: Tensor, slope: Tensor | None, part: Sequence[Taken] = part, plan: Sequence[tuple[int, int]] = plan) -> tuple[Tensor, ...]:
            found = []
            step: Step | None = None
            for step, (low, high) in zip(retake(problem, x, slope, part), plan, strict=True):
                if high > low:
                    found.append(read(problem.pair, step, times[low:high], None if moves is None else moves[low:high]))
            if step is None:
                return (x, x)
            return (step.end, step.slopes[-1], *found)

        x, slope, *found = checkpoint(captured, segment, x, slope, use_reentrant=False)
        pieces += found
    forward = False
    capture.seal()
    return torch.cat(pieces)
