"""Every kernel compiles for a GPU, down to its binary, where there is none. The interpreter takes much that the compiler does not.

It takes a process of its own where TRITON_INTERPRET is not set, and Triton, which brings the assembler.
"""

import contextlib
import os

import pytest
import torch
from torch.nn import functional as F
from traced_steps import program_of

from pararnn.compiler.engine import Tolerance
from pararnn.compiler.gpu import backward, calls, forward
from pararnn.compiler.gpu.backward_planning import Cut
from pararnn.compiler.gpu.launches import Launch
from pararnn.scans import launches as scan_launches
from pararnn.scans import triton_blocks, triton_diagonal
from pararnn.solver.planner import Plan
from pararnn.structures.block_diagonal import BlockDiagonal
from pararnn.structures.diagonal import Diagonal

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
    pytest.skip("Triton interprets here, and compiles nothing", allow_module_level=True)

SOLVES = {
    "walk": Launch(variant="walk", block_state=4, warps=1, ahead=4),
    "shoot": Launch(variant="shoot", block_state=4, warps=1, ahead=2, interval=4, count=4),
    "across": Launch(variant="across", block_state=4, warps=1, ahead=2, interval=4, count=2, sweeps=3),
}
CUTS = {
    "walk": Cut(variant="walk", block_state=4, warps=1, ahead=3),
    "tile": Cut(variant="tile", block_state=4, warps=1, ahead=2, intervals=8),
    "across": Cut(variant="across", block_state=4, warps=1, ahead=2, intervals=3),
}
SCANS = {
    "stream": scan_launches.streaming(itemsize=4),
    "walk": scan_launches.walking(itemsize=4),
    "chain": scan_launches.in_chain(37, itemsize=4),
    "tiles": scan_launches.in_tiles(itemsize=4),
}
LENGTH, STATE = 37, 5
OFFSETS = (0, 3, 3, LENGTH)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
PACKED = pytest.mark.parametrize("bounds", [None, OFFSETS], ids=["whole", "packed"])


class Hopper:
    """What Triton asks of a driver."""

    def get_current_target(self):
        return triton.backends.compiler.GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=0):
        return 0


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """The names of the kernels that were compiled; nothing is launched, and results are what was in memory before."""
    names, function, driver = [], triton.runtime.jit.JITFunction, triton.runtime.driver
    run = function.run

    def compile_only(kernel, *arguments, grid, warmup, **options):
        names.append(kernel.__name__)
        return run(kernel, *arguments, grid=grid, warmup=True, **options)

    monkeypatch.setattr(driver, "_active", Hopper())
    monkeypatch.setattr(function, "run", compile_only)
    monkeypatch.setattr(calls, "_launcher", lambda kernel, grid: lambda *arguments: None)
    monkeypatch.setattr(torch.cuda, "device_of", lambda tensor: contextlib.nullcontext())
    for module in (forward, backward):
        monkeypatch.setattr(module, "_prepared", {})
    return names


def gated(state, drive):
    rate, candidate, elapsed, recurrent = drive
    return torch.lerp(torch.tanh(candidate + recurrent * state), state, torch.exp(-F.softplus(rate) * elapsed))


def scaled(state, drive):
    decay, term, scale = drive
    return decay * state + scale * term


STEPS = {
    "gated": (gated, ((1, LENGTH, STATE), (1, LENGTH, STATE), (1, LENGTH, 1), (STATE,))),
    "scaled": (scaled, ((1, LENGTH, STATE), (1, LENGTH, STATE), ())),
}


def case(name, dtype, bounds):
    """A program, its operands, initial states and offsets."""
    step, shapes = STEPS[name]
    program, _ = program_of(step, [torch.ones(shape, dtype=torch.float64) for shape in shapes], state=STATE)
    operands = [torch.ones(shape, dtype=dtype) for shape in shapes]
    return program, operands, torch.ones(sequences(bounds), STATE, dtype=dtype), None if bounds is None else torch.tensor(bounds)


def sequences(bounds):
    return 1 if bounds is None else len(bounds) - 1


@DTYPES
@PACKED
@pytest.mark.parametrize("launch", SOLVES)
def test_kernels_of_a_solve(compiled, launch, dtype, bounds):
    program, operands, initial, offsets = case("gated", dtype, bounds)
    tolerance = Tolerance(absolute=1e-6, relative=1e-6, sweeps=3)
    forward.solve(program, operands, initial, length=LENGTH, offsets=offsets, launch=SOLVES[launch], tolerance=tolerance)
    assert compiled


@DTYPES
def test_the_kernel_of_one_step(compiled, dtype):
    program, operands, initial, _ = case("gated", dtype, None)
    forward.step(program, initial, [one[:, 0] if one.ndim == 3 else one for one in operands], torch.empty_like(initial))
    assert compiled == ["one_step"]


@DTYPES
@PACKED
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", STEPS)
def test_kernels_of_gradients(compiled, cut, name, dtype, bounds):
    program, operands, initial, offsets = case(name, dtype, bounds)
    facts = {"walk": 0.0, "sweep": 0.0, "parallel": 0.0, "patience": 1, "by_autograd": False}
    plan, needs = Plan(interval=1, length=LENGTH, lanes=STATE, reason="a test", **facts), [True] * (len(operands) + 1)
    grad, states = torch.ones(1, LENGTH, STATE, dtype=dtype), torch.ones(1, LENGTH, STATE, dtype=dtype)
    backward.launch(program, grad, states, operands, initial, offsets=offsets, plan=plan, needs=needs, cut=CUTS[cut])
    assert compiled


REAL, COMPLEX = (torch.float32, torch.float64, torch.bfloat16, torch.float16), (torch.complex64,)
# The stream and the chain are for real numbers.
SCANNED = [(launch, dtype) for launch in SCANS for dtype in (REAL if launch in ("stream", "chain") else REAL[:2] + COMPLEX)]


@PACKED
@pytest.mark.parametrize(("launch", "dtype"), SCANNED, ids=str)
def test_kernels_of_the_diagonal_scan(compiled, launch, dtype, bounds):
    maps, terms = torch.ones(1, LENGTH, STATE, dtype=dtype), torch.ones(1, LENGTH, STATE, dtype=dtype)
    given = {"initial": torch.ones(1, sequences(bounds), STATE, dtype=dtype), "offsets": bounds, "launch": SCANS[launch]}
    states = triton_diagonal.scan(Diagonal(maps), terms, **given)
    triton_diagonal.scan.costates(Diagonal(maps), terms, states=states, **given)
    assert len(compiled) >= 2


@DTYPES
@pytest.mark.parametrize("length", [LENGTH, 4096])
@pytest.mark.parametrize("launch", ["lines", "linked"])
def test_kernels_of_the_diagonal_scan_along_time(compiled, launch, dtype, length):
    maps, terms = torch.ones(1, STATE, length, dtype=dtype).mT, torch.ones(1, STATE, length, dtype=dtype).mT
    made = scan_launches.in_lines if launch == "lines" else scan_launches.linked
    given = {"initial": torch.ones(1, 1, STATE, dtype=dtype), "launch": made(length, itemsize=dtype.itemsize)}
    for reverse in (False, True):
        states = triton_diagonal.scan(Diagonal(maps), terms, reverse=reverse, **given)
        triton_diagonal.scan.costates(Diagonal(maps), terms, states=states, reverse=reverse, **given)
    assert len(compiled) >= 4


@PACKED
@pytest.mark.parametrize(("slots", "dtype"), [(2, torch.float32), (2, torch.float64), (2, torch.bfloat16), (4, torch.float32)], ids=str)
def test_kernels_of_the_scan_of_blocks(compiled, slots, dtype, bounds):
    maps, terms = torch.ones(1, LENGTH, slots, slots, STATE, dtype=dtype), torch.ones(1, LENGTH, slots * STATE, dtype=dtype)
    given = {"initial": torch.ones(1, sequences(bounds), slots * STATE, dtype=dtype), "offsets": bounds, "chunk": 8}
    states = triton_blocks.scan(BlockDiagonal(maps), terms, **given)
    triton_blocks.scan.costates(BlockDiagonal(maps), terms, states=states, **given)
    assert len(compiled) >= 4
