"""Exact gradients at the memory of the square root of the steps: segments are walked again when their gradient is due."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as run_again

from pararnn.transforms import inside_transform
from pararnn_nanode.integrate.capture import Capture
from pararnn_nanode.integrate.methods import State
from pararnn_nanode.integrate.walk import Walk, advance_between, backprop, gather


def checkpoint(walk: Walk, x: Tensor) -> Tensor:
    """States at the asked times; keeps the state of every segment's start, and builds weights inside segments so that they are not kept either.

    Under a transform of `torch.func`, which cannot take saved tensors away, every step stays on the graph.
    """
    if inside_transform() or not torch.is_grad_enabled():
        return backprop(walk, x)
    capture = None if torch.compiler.is_compiling() else Capture.of(walk.field, u=walk.u)
    wanted = frozenset(walk.schedule.outputs)
    again = replace(walk, progress=None)
    walking = walk

    def segment(first: int, last: int, *state: Tensor) -> tuple[Tensor, ...]:
        """The state at knot `last`, then the wanted ones at knots after `first` up to it."""
        state, kept = advance_between(walking, state, first, last, wanted)
        return *state, *kept.values()

    def captured(*arguments: Any) -> tuple[Tensor, ...]:
        """The segment with what the field held; for the second time, the buffers have their updates already."""
        if capture is None:
            return segment(*arguments)
        if walking is walk:
            return capture.run(segment, *arguments)
        capture.check_unchanged()
        return capture.run_again(segment, *arguments)

    state: State = walk.method.begin(x)
    held: dict[int, Tensor] = {}
    width = max(1, math.isqrt(walk.steps))
    for first in range(0, walk.steps, width):
        last = min(first + width, walk.steps)
        found = run_again(captured, first, last, *state, use_reentrant=False)
        held.update(zip((knot for knot in range(first + 1, last + 1) if knot in wanted), found[len(state) :], strict=True))
        state = found[: len(state)]
    walking = again
    if capture is not None:
        capture.seal()
    if walk.report is not None:
        walk.report.last = state
    return gather(walk, x, held)
