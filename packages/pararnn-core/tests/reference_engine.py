"""An engine that prints nothing: PyTorch runs the program, one operation after the other. The oracle of what surrounds engines."""

import torch

from pararnn.compiler import reference
from pararnn.solver.planner import Plan

DTYPES = ("float16", "bfloat16", "float32", "float64")


class ReferenceEngine:
    """Walks always; where intervals are asked for, it says so in the record as an engine would."""

    name, device, language = "reference", "cpu", "text"

    def __init__(self):
        self.solves, self.backwards = 0, 0

    def reasons(self, request):
        return () if request.dtype in DTYPES else (f"it works in {', '.join(DTYPES)}, the states are {request.dtype}",)

    def plan(self, program, work, interval):
        chosen = {"auto": work.longest, "parallel": 4}.get(interval, interval)
        facts = {"walk": 0.0, "sweep": 0.0, "parallel": 0.0, "patience": 8, "by_autograd": False, "reason": "it is the reference"}
        return Plan(interval=min(chosen, work.longest), length=work.longest, lanes=work.sequences * work.state, **facts)

    def solve(self, program, operands, initial, *, offsets, plan, tolerance):
        self.solves += 1
        states = reference.walk(program, operands, initial, offsets)
        record = torch.zeros(initial.shape[0], 2, 3, device=initial.device)
        if not plan.walks:
            record[..., 0], record[..., 1] = 3, 0.25
        return states, record

    def backward(self, program, grad, states, operands, initial, *, offsets, plan, needs, into=None):
        self.backwards += 1
        found = reference.backward(program, grad, states, operands, initial, offsets)
        return [gradient if needed else None for gradient, needed in zip(found, needs, strict=True)]

    def step(self, program, state, operands, out):
        out.copy_(reference.evaluate(program.value, state, *operands)[0])

    def source(self, program):
        return str(program)
