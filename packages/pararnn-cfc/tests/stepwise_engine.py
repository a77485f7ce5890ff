"""An engine that runs programs by PyTorch, one step after the other: slow, obvious, and everywhere."""

from dataclasses import replace

import torch

from pararnn.compiler import reference
from pararnn.solver.planner import Plan


class StepwiseEngine:
    """Walks whatever it is given; `calls` counts what was asked of it."""

    name = "stepwise"

    def __init__(self):
        self.calls = []

    def reasons(self, request):
        return ()

    def plan(self, program, work, interval):
        length = work.longest
        cut = min(interval, length) if isinstance(interval, int) else length
        facts = {"walk": 0.0, "sweep": 0.0, "parallel": 0.0, "patience": 3, "by_autograd": False, "reason": "it is the reference"}
        return Plan(interval=cut, length=length, lanes=work.rows * work.state, **facts)

    def solve(self, program, operands, initial, *, offsets, plan, tolerance):
        self.calls.append(("solve", operands[0].shape[1]))
        states = reference.walk(program, operands, initial, offsets)
        return states, torch.zeros(initial.shape[0], 1, 3, device=initial.device)

    def backward(self, program, grad, states, operands, initial, *, offsets, plan, needs, into=None):
        self.calls.append(("backward", operands[0].shape[1]))
        found = reference.backward(program, grad, states, operands, initial, offsets)
        targets = [*(into or [None] * len(operands)), None]
        written = []
        for gradient, need, target in zip(found, needs, targets, strict=True):
            written.append(None if not need else gradient if target is None else target.copy_(gradient))
        return written


def small_blocks(setting, rows, length):
    """`setting` with blocks of `rows` rows and `length` steps instead of those that fit its cache."""
    block, total = setting.blocks[0], setting.plan.length
    blocks = tuple(
        block._replace(
            rows=slice(first, min(first + rows, 5)), start=start, stop=min(start + length, total), plan=replace(setting.plan, interval=total)
        )
        for first in range(0, 5, rows)
        for start in range(0, total, length)
    )
    return replace(setting, blocks=blocks)
