"""An engine of the CPU, with a folder for its libraries that all tests share, and cells that it compiles."""

import pytest
import torch

from pararnn.compiler.engine import Tolerance, Workload
from pararnn.compiler.native import toolchain
from pararnn.compiler.native.engine import NativeEngine
from pararnn.compiler.tracing import trace

# Where nothing can be compiled there is nothing to test.
collect_ignore_glob = ["test_*.py"] if toolchain.reasons() else []

TOLERANCES = {
    torch.float64: Tolerance(absolute=1e-12, relative=1e-11, sweeps=64),
    torch.float32: Tolerance(absolute=1e-6, relative=2e-6, sweeps=64),
    torch.bfloat16: Tolerance(absolute=1e-2, relative=1e-2, sweeps=64),
    torch.float16: Tolerance(absolute=2e-3, relative=2e-3, sweeps=64),
}


@pytest.fixture(scope="session", autouse=True)
def _shared_cache(tmp_path_factory):
    """One folder for all tests: each library takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARARNN_CACHE_DIR", str(tmp_path_factory.mktemp("libraries")))
        yield


@pytest.fixture(scope="session")
def engine():
    return NativeEngine()


class Subject:
    """A step with operands of some sizes, solved by the engine and by a loop under autograd."""

    def __init__(self, engine, program, step, kinds, values, initial, offsets):
        self.engine, self.program, self.step, self.kinds = engine, program, step, kinds
        self.operands, self.initial, self.offsets = values, initial, offsets

    def plan(self, interval):
        rows, length = self.operands[0].shape[:2]
        longest = length if self.offsets is None else int(self.offsets.diff().max())
        work = Workload(
            rows=rows,
            length=length,
            state=self.initial.shape[1],
            sequences=self.initial.shape[0],
            longest=longest,
            itemsize=self.initial.element_size(),
        )
        return self.engine.plan(self.program, work, longest if interval == "walk" else interval)

    def solve(self, interval="walk"):
        tolerance = TOLERANCES[self.initial.dtype]
        return self.engine.solve(self.program, self.operands, self.initial, offsets=self.offsets, plan=self.plan(interval), tolerance=tolerance)

    def backward(self, grad, states, needs=None, into=None):
        needs = [True] * (len(self.kinds) + 1) if needs is None else needs
        return self.engine.backward(
            self.program, grad, states, self.operands, self.initial, offsets=self.offsets, plan=self.plan("walk"), needs=needs, into=into
        )

    def loop(self, grad=None):
        """States by a loop in double precision, and the gradients of operands and initial states."""
        leaves = [tensor.detach().double().requires_grad_() for tensor in (*self.operands, self.initial)]
        *operands, initial = leaves
        length = operands[0].shape[1]
        bounds = [0, length] if self.offsets is None else self.offsets.tolist()
        pieces = []
        for index in range(len(bounds) - 1):
            state = initial if self.offsets is None else initial[index : index + 1]
            for time in range(bounds[index], bounds[index + 1]):
                state = self.step(state, tuple(value[:, time] if kind in "et" else value for kind, value in zip(self.kinds, operands, strict=True)))
                pieces.append(state)
        states = torch.stack(pieces, 1) if pieces else initial.new_zeros(self.operands[0].shape[0], 0, initial.shape[1])
        if grad is None:
            return states.detach()
        found = torch.autograd.grad(states, leaves, grad.double(), allow_unused=True)
        return [torch.zeros_like(leaf) if one is None else one for one, leaf in zip(found, leaves, strict=True)]


def cfc(state, drive):
    rate, candidate, elapsed, recurrent = drive
    keep = torch.exp(-torch.nn.functional.softplus(rate) * elapsed)
    return torch.lerp(torch.tanh(candidate + recurrent * state), state, keep)


def gated(state, drive):
    gate, candidate, weight, scale = drive
    share = torch.sigmoid(gate + scale)
    return (1 - share) * state + share * torch.tanh(candidate + weight * state)


def linear(state, drive):
    decay, term = drive
    return torch.sigmoid(decay) * state + term


def crooked(state, drive):
    """Comparisons, selections, and functions that other cells do not have."""
    first, second, scale = drive
    bent = torch.where((state > first) & (second < 1), torch.sin(state) + first, torch.erf(state * second))
    grown = torch.log1p(torch.relu(bent)) + torch.expm1(-bent.abs()) * scale
    return 0.5 * torch.maximum(grown, torch.minimum(first, second)) + 0.1 * (1.5 + torch.cos(second)).pow(2.5)


def timed(state, drive):
    """Much that follows from the gap alone, and a selection by it of what does not."""
    candidate, elapsed = drive
    keep = torch.sigmoid(torch.log1p(elapsed) - torch.exp(-elapsed))
    return keep * state + (1 - keep) * torch.tanh(torch.where(elapsed > 0.5, candidate, 0.5 - candidate) + state)


def logistic(state, drive):
    rate, none = drive
    return (3.9 + 0.01 * torch.tanh(rate)) * state * (1 - state) + 0 * none


CELLS = {
    "cfc": (cfc, "eetc"),
    "gated": (gated, "eecs"),
    "linear": (linear, "ee"),
    "crooked": (crooked, "ees"),
    "timed": (timed, "et"),
    "spread": (timed, "ee"),
    "logistic": (logistic, "ec"),
}


def shape_of(kind, rows, length, state):
    return {"e": (rows, length, state), "t": (rows, length, 1), "c": (state,), "s": ()}[kind]


@pytest.fixture(scope="session")
def subject(engine):
    """Make a subject: its cell by name, sizes, dtype, and lengths where sequences are packed."""
    programs = {}

    def make(name, rows, length, state, *, dtype=torch.float64, lengths=None, seed=0):
        step, kinds = CELLS[name]
        carry = torch.float64 if dtype is torch.float64 else torch.float32
        if (name, carry) not in programs:
            drive = tuple(torch.zeros({"e": (1, 3), "t": (1, 1), "c": (3,), "s": ()}[kind], dtype=carry) for kind in kinds)
            programs[name, carry] = trace(step, torch.zeros(1, 3, dtype=carry), drive, {}).program
        random = torch.Generator().manual_seed(seed + rows + 10 * length + 100 * state)
        offsets = None
        if lengths is not None:
            offsets = torch.tensor([0, *lengths]).cumsum(0)
            rows, length = 1, int(offsets[-1])
        values = [torch.randn(shape_of(kind, rows, length, state), generator=random, dtype=torch.float64) for kind in kinds]
        values = [
            (value.abs() if kind == "t" else 0.5 * value.tanh() if kind in "cs" else value).to(dtype)
            for kind, value in zip(kinds, values, strict=True)
        ]
        sequences = rows if offsets is None else len(lengths)
        initial = torch.rand(sequences, state, generator=random, dtype=torch.float64).to(dtype)
        return Subject(engine, programs[name, carry], step, kinds, values, initial, offsets)

    return make
