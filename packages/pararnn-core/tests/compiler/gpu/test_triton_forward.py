"""States by the forward kernels: against the walk by PyTorch in double precision, for every way to solve.

On the CPU where TRITON_INTERPRET is set, which takes a process of its own, with small tiles; on a GPU also with the launches that are planned there.
"""

import itertools
import os
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from pararnn.compiler import reference
from pararnn.compiler.engine import Tolerance, Workload
from pararnn.compiler.primitives import PRIMITIVES
from pararnn.compiler.program import Expression, Kind, Operation, Program
from pararnn.compiler.tracing import trace
from pararnn.solver.config import DEFAULT_TOLERANCES

pytest.importorskip("triton")

from pararnn.compiler.gpu import forward, planning, printer
from pararnn.compiler.gpu.engine import TritonEngine
from pararnn.compiler.gpu.launches import Launch
from pararnn.compiler.gpu.parts import kept

LAUNCHES = {
    "walk": Launch(variant="walk", block_state=4, warps=1, ahead=4),
    "shoot": Launch(variant="shoot", block_state=4, warps=1, ahead=2, interval=4, count=4),
    "across": Launch(variant="across", block_state=4, warps=1, ahead=2, interval=4, count=2, sweeps=3),
    "across, long": Launch(variant="across", block_state=4, warps=1, ahead=2, interval=12, count=2, sweeps=3),
}
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def places(*names):
    on_cpu = [pytest.param((LAUNCHES[name], "cpu"), id=f"triton {name}") for name in names if INTERPRETED]
    on_gpu = [pytest.param((LAUNCHES[name], "cuda"), id=f"triton {name}, gpu", marks=pytest.mark.gpu) for name in names]
    return pytest.mark.parametrize("place", on_cpu + on_gpu)


everywhere = places(*LAUNCHES)
in_parallel = places(*list(LAUNCHES)[1:])
on_gpu = pytest.mark.parametrize("place", [pytest.param((None, "cuda"), id="triton planned, gpu", marks=pytest.mark.gpu)])
# NumPy, which the interpreter works with, reports what a GPU does not.
overflowing = pytest.mark.filterwarnings("ignore::RuntimeWarning")
# A cell whose states are 1 may be off by so much, with the rounding of all steps before.
BOUNDS = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def gated(state, drive):
    rate, candidate, elapsed, recurrent = drive
    return torch.lerp(torch.tanh(candidate + recurrent * state), state, torch.exp(-F.softplus(rate) * elapsed))


def minimal_gru(state, drive):
    gate, candidate, recurrent = drive
    return torch.lerp(state, torch.tanh(candidate + recurrent * state), torch.sigmoid(gate))


def creeping(state, drive):
    return torch.tanh(state + drive[0])


def chaotic(state, drive):
    return drive[0] * state * (1 - state)


def exploding(state, drive):
    return state * state + drive[0]


def breathing(state, drive):
    return drive[0] * torch.tanh(state) + drive[1]


E, T, C, S = Kind.ELEMENT, Kind.STEP, Kind.CHANNEL, Kind.SCALAR
STEPS = {
    "gated": (gated, (E, E, T, C)),
    "gru": (minimal_gru, (E, E, S)),
    "creeping": (creeping, (E,)),
    "chaotic": (chaotic, (E,)),
    "exploding": (exploding, (E,)),
    "breathing": (breathing, (E, E)),
}


class Case:
    """A program with its operands on a device, and how it is solved."""

    def __init__(self, place, name, rows, length, state, *, dtype=torch.float32, bounds=None):
        self.launch, self.device = place
        self.dtype, self.length = dtype, length
        numbers = torch.Generator().manual_seed(length + 10 * state)
        step, kinds = STEPS[name]
        one = tuple(torch.zeros({E: (1, state), T: (1, 1), C: (state,), S: ()}[kind], dtype=torch.float64) for kind in kinds)
        program = trace(step, torch.zeros(1, state, dtype=torch.float64), one, {}, timed=[kind.is_timed for kind in kinds]).program
        self.program = program
        self.offsets = None if bounds is None else torch.tensor(bounds, device=self.device)
        sequences = rows if bounds is None else len(bounds) - 1
        shapes = {E: (rows, length, state), T: (rows, length, 1), C: (state,), S: ()}
        self.operands = [self._operand(name, index, shapes[kind], numbers).to(dtype).to(self.device) for index, kind in enumerate(program.kinds)]
        self.initial = torch.rand(sequences, state, generator=numbers, dtype=torch.float64).mul(0.5).to(dtype).to(self.device)

    @staticmethod
    def _operand(name, index, shape, numbers):
        if name == "creeping":
            return torch.full(shape, 1e-3, dtype=torch.float64)
        if name == "chaotic":
            return torch.full(shape, 3.9, dtype=torch.float64)
        drawn = torch.randn(shape, generator=numbers, dtype=torch.float64)
        return {2: drawn.abs() * 0.3, 3: drawn.clamp(-0.5, 0.5)}.get(index, drawn)

    def solve(self, sweeps=16):
        """States and record, after memory that was full of NaN."""
        absolute, relative = DEFAULT_TOLERANCES[self.dtype]
        self.tolerance = Tolerance(absolute=absolute, relative=relative, sweeps=sweeps)
        torch.full((1 << 12,), torch.nan, device=self.device)
        if self.launch is None:
            rows, longest = (self.initial.shape[0] if self.offsets is None else 1), self.length
            if self.offsets is not None:
                longest = int(self.offsets.diff().max())
            state = self.initial.shape[1]
            work = Workload(
                rows=rows, length=self.length, state=state, sequences=self.initial.shape[0], longest=longest, itemsize=self.initial.element_size()
            )
            engine = TritonEngine()
            plan = engine.plan(self.program, work, "auto")
            return engine.solve(self.program, self.operands, self.initial, offsets=self.offsets, plan=plan, tolerance=self.tolerance)
        return forward.solve(
            self.program, self.operands, self.initial, length=self.length, offsets=self.offsets, launch=self.launch, tolerance=self.tolerance
        )

    def exact(self):
        """The states by PyTorch, in double precision."""
        return reference.walk(self.program, [one.double() for one in self.operands], self.initial.double(), self.offsets)

    def hold(self, bound=None):
        states, record = self.solve()
        error = (states.double() - self.exact()).abs().max().item()
        assert error <= (BOUNDS[self.dtype] if bound is None else bound), f"off by {error:.1e}"
        return states, record


@pytest.fixture(autouse=True)
def small(monkeypatch, request):
    """Small tiles, so that short sequences have several of them, where the launch is not the planner's, and a cache that no other test filled."""
    monkeypatch.setattr(forward, "_prepared", {})
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if parameters.get("place", (None,))[0] is not None:
        monkeypatch.setattr(forward, "BOUNDARY_TILE", 8)
        monkeypatch.setattr(forward, "REPAIR_COUNT", 4)
        monkeypatch.setattr(forward, "REPAIR_INTERVAL", 4)
        monkeypatch.setattr(forward, "MEETING", 12)


@everywhere
@pytest.mark.parametrize("name", ["gated", "gru"])
@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 13, 5), (1, 37, 4)], ids=str)
def test_states_are_those_of_the_walk(place, name, shape):
    Case(place, name, *shape).hold()


@everywhere
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_states_are_as_precise_as_their_dtype(place, dtype):
    case = Case(place, "gated", 1, 21, 3, dtype=dtype)
    states, _ = case.hold()
    assert states.dtype == dtype


@everywhere
def test_operands_may_be_narrower_than_the_states(place):
    case = Case(place, "gated", 1, 9, 3)
    case.operands[0] = case.operands[0].bfloat16()
    case.hold()


@everywhere
def test_operands_are_read_by_their_strides(place):
    case = Case(place, "gated", 2, 13, 4)
    rate, candidate, elapsed, recurrent = case.operands
    both = torch.cat([rate, candidate], dim=-1)
    case.operands = [both[..., :4], both[..., 4:], elapsed.mT.contiguous().mT, recurrent[:1].expand(4)]
    case.hold()
    case.operands = [rate.transpose(0, 1).contiguous().transpose(0, 1), candidate.mT.contiguous().mT, elapsed[:, :1].expand(2, 13, 1), recurrent]
    case.initial = case.initial[:1].expand(2, 4)
    case.hold()


@places("walk", "shoot")
def test_packed_sequences_begin_anew_and_may_be_empty(place):
    bounds = [0, 0, 7, 7, 8, 27]
    case = Case(place, "gated", 1, 27, 3, bounds=bounds)
    states, _ = case.hold()
    for (start, end), initial in zip(itertools.pairwise(bounds), case.initial, strict=True):
        alone = reference.walk(
            case.program, [one[:, start:end].double() if one.ndim == 3 else one.double() for one in case.operands], initial[None].double()
        )
        assert end == start or (states[:, start:end].double() - alone).abs().max() < 1e-5


@overflowing
@in_parallel
def test_a_chaotic_cell_is_walked_and_says_so(place, monkeypatch):
    # Few intervals are exact after as many sweeps, whatever the cell does.
    monkeypatch.setattr(forward, "REPAIR_COUNT", 8)
    launch, device = place
    case = Case((replace(launch, interval=4, count=8), device), "chaotic", 1, 45, 2, dtype=torch.float64)
    states, record = case.solve()
    assert record[..., 2].min() == 1
    case.launch = LAUNCHES["walk"]
    walked, _ = case.solve()
    # A compiler may round a step of one kernel otherwise than that of another, and the cell makes much of it.
    steps = 45 if case.device == "cpu" else 25
    assert (states[:, :steps] - walked[:, :steps]).abs().max() < (1e-300 if case.device == "cpu" else 1e-6)


@places("across, long")
def test_sweeps_have_not_met_where_what_is_between_them_will_grow(place):
    case = Case((replace(place[0], interval=48), place[1]), "breathing", 1, 200, 4, dtype=torch.float64)
    # States that differ by one lie 1e-13 apart after sixteen steps of an interval, and a thousand times the tolerance after twelve more.
    slopes = torch.tensor([0.155] * 16 + [6.0] * 12 + [0.155] * 20).repeat(5)[:200]
    case.operands[0].copy_(slopes.view(1, 200, 1))
    case.operands[1].mul_(1e-3)
    states, record = case.solve()
    assert record[..., 2].max() == 0
    case.launch = LAUNCHES["walk"]
    torch.testing.assert_close(states, case.solve()[0], rtol=1e-11, atol=1e-12)


@places("shoot")
def test_updates_that_stay_as_large_as_the_states_for_a_while_are_no_stall(place):
    # With such a recurrent weight a channel has two states to choose from.
    case, numbers = Case((replace(place[0], count=16), place[1]), "gated", 1, 64, 4), torch.Generator().manual_seed(26)
    drawn = [torch.randn(1, 64, size, generator=numbers) for size in (4, 4, 1)]
    operands = (*drawn[:2], drawn[2].abs() * 0.3, torch.full((4,), 1.7))
    case.operands, case.initial = [one.to(case.device) for one in operands], torch.zeros_like(case.initial)
    _, record = case.hold()
    assert record[..., 2].max() == 0
    assert record[..., 0].max() > 3


@in_parallel
def test_a_cell_that_creeps_is_not_left_at_a_small_residual(place):
    _, record = Case(place, "creeping", 1, 61, 2).hold(4e-6)
    assert record[..., 2].max() == 0
    assert record[..., 0].max() > 1


@overflowing
@in_parallel
def test_states_that_overflow_do_so_where_the_walk_does(place):
    case = Case(place, "exploding", 1, 25, 3)
    states, record = case.solve()
    case.launch = LAUNCHES["walk"]
    walked, _ = case.solve()
    assert torch.equal(states.isfinite(), walked.isfinite())
    assert record[..., 2].max() == 1
    assert not states.isfinite().all()


@in_parallel
def test_no_sweeps_to_spare_means_the_walk(place):
    case = Case(place, "gru", 1, 37, 2, dtype=torch.float64)
    states, record = case.solve(sweeps=1)
    assert record[..., 2].max() == 1
    assert (states - case.exact()).abs().max() < 1e-12


@in_parallel
def test_a_second_solve_gives_the_same_bits(place):
    case = Case(place, "gated", 2, 29, 5)
    first, second = case.solve()[0], case.solve()[0]
    assert torch.equal(first, second)


@overflowing
@places("walk", "shoot")
def test_eight_thousand_odd_steps(place):
    launch, device = place
    if launch.variant == "shoot":
        place = Launch(variant="shoot", block_state=1, warps=1, ahead=1, interval=128, count=128), device
    Case(place, "creeping", 1, 8193 if launch.variant == "shoot" else 1025, 1).hold(1e-4)


@places("walk")
def test_a_step_may_write_over_its_state(place):
    case = Case(place, "gated", 2, 1, 5)
    state = case.initial.clone()
    operands = [one[:, 0] if kind.is_timed else one for kind, one in zip(case.program.kinds, case.operands, strict=True)]
    TritonEngine().step(case.program, state, operands, state)
    assert (state - case.exact()[:, 0]).abs().max() < 1e-6
    wide = torch.zeros(2, 10, device=case.device)
    TritonEngine().step(case.program, case.initial, operands, wide[:, ::2])
    assert torch.equal(wide[:, ::2], state)


NUMBERS = [-3.5, -1.0, -0.3, -1e-4, 0.0, 1e-6, 0.2, 0.5, 1.0, 2.0, 9.0]


@places("walk")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_primitive_means_what_it_means_in_pytorch(place, dtype):
    _, device = place
    first = torch.tensor(NUMBERS, dtype=dtype).repeat_interleave(len(NUMBERS))
    second = torch.tensor(NUMBERS, dtype=dtype).repeat(len(NUMBERS))
    bound = 4e-6 if dtype == torch.float32 else 1e-13
    for name, primitive in PRIMITIVES.items():
        arguments = ("o0", "o1") if primitive.arguments == 2 else ("v8", "o0", "o1") if primitive.arguments == 3 else ("o0",)
        operations = [Operation("v8", "lt", ("o0", "o1")), Operation("v0", name, arguments)]
        result = "v0"
        if primitive.is_truth:
            operations.append(Operation("v1", "where", ("v0", 1.0, 0.25)))
            result = "v1"
        value = Expression(("state", "o0", "o1"), tuple(operations), (result,))
        program = Program(kinds=(E, E), value=value, advance=value, pull=value)
        operands = [one.reshape(1, 1, -1).to(device) for one in (first, second)]
        initial = torch.zeros(1, first.numel(), dtype=dtype, device=device)
        launch = Launch(variant="walk", block_state=128, warps=4, ahead=1)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("warnings.filters", [("ignore", None, RuntimeWarning, None, 0)])
            tolerance = Tolerance(absolute=1e-6, relative=1e-6, sweeps=1)
            states, _ = forward.solve(program, operands, initial, length=1, offsets=None, launch=launch, tolerance=tolerance)
        expected = reference.walk(program, [one.double() for one in operands], initial.double())
        error = ((states.double() - expected) / expected.abs().clamp_min(1e-30)).nan_to_num(0.0, 0.0, 0.0).abs()
        assert error.max() < bound, f"{name} is off by {error.max():.1e}"
        assert torch.equal(states.isnan(), expected.isnan()), name


def test_the_table_of_triton_has_every_primitive():
    assert set(printer.TABLE) == set(PRIMITIVES)


def test_the_decay_of_a_gated_step_is_kept_and_nothing_of_a_short_one():
    case = Case((None, "cpu"), "gated", 1, 1, 3)
    found = kept(case.program)
    assert found is not None
    assert {operation.primitive for operation in found.making} >= {"exp", "softplus"}
    assert not {"exp", "softplus"} & {operation.primitive for operation in (*found.value, *found.advance)}
    assert kept(Case((None, "cpu"), "creeping", 1, 1, 3).program) is None


SHAPES = {
    (8, 512, 64): "shoot",
    (64, 1024, 64): "shoot",
    (8, 2048, 256): "shoot",
    (1, 131072, 64): "across",
    (1, 131072, 256): "across",
    (32, 8192, 1024): "walk",
    (256, 64, 256): "walk",
    (4, 16, 64): "walk",
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_planner_walks_many_channels_and_cuts_few(shape):
    rows, length, state = shape
    program = Case((None, "cpu"), "gated", 1, 1, 3).program
    work = Workload(rows=rows, length=length, state=state, sequences=rows, longest=length, itemsize=4)
    plan = planning.plan(program, work, "auto", packed=False)
    assert planning.launch_for(program, work, plan.interval, packed=False).variant == SHAPES[shape]
    assert plan.walks == (SHAPES[shape] == "walk")
    assert "estimated" in plan.explain() or length <= 24


@pytest.mark.parametrize("shape", [(32, 8192, 1024), (1, 131072, 64)], ids=str)
def test_a_parallel_launch_against_the_estimates_says_that_it_was_asked_for(shape):
    rows, length, state = shape
    program = Case((None, "cpu"), "gated", 1, 1, 3).program
    work = Workload(rows=rows, length=length, state=state, sequences=rows, longest=length, itemsize=4)
    plan = planning.plan(program, work, "parallel", packed=False)
    assert not plan.walks
    slower = plan.parallel >= plan.walk
    assert slower == (SHAPES[shape] == "walk")
    assert plan.reason.startswith("a parallel solve was asked for (estimated at ") == slower
    assert plan.reason.endswith("would be quicker)") == slower


@pytest.mark.parametrize("interval", [1, 7, 64, 4096, 9999])
def test_an_interval_that_was_asked_for_is_taken(interval):
    program = Case((None, "cpu"), "gated", 1, 1, 3).program
    work = Workload(rows=2, length=4096, state=64, sequences=2, longest=4096, itemsize=4)
    plan = planning.plan(program, work, interval, packed=False)
    assert plan.interval == min(interval, 4096)
    launch = planning.launch_for(program, work, plan.interval, packed=False)
    assert launch.variant == "walk" or launch.interval == interval
    assert launch.variant == "walk" or interval % launch.ahead == 0


@on_gpu
@pytest.mark.parametrize("name", ["gated", "gru"])
@pytest.mark.parametrize("shape", [(8, 512, 64), (3, 1001, 37), (1, 9001, 64), (700, 129, 64)], ids=str)
def test_planned_solves_are_those_of_the_walk(place, name, shape):
    _, record = Case(place, name, *shape).hold()
    assert record[..., 2].max() == 0


@on_gpu
def test_a_planned_solve_of_packed_sequences(place):
    Case(place, "gated", 1, 3000, 64, bounds=[0, 0, 1, 1200, 1200, 3000]).hold()
