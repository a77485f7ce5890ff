"""Gradients by the backward kernels: against the walk by PyTorch in double precision, for every way to cut a sequence.

On the CPU where TRITON_INTERPRET is set, which takes a process of its own, with small tiles; on a GPU also with the cuts that are launched there.
"""

import itertools
import os

import pytest
import torch
from torch.nn import functional as F

from pararnn.compiler import reference
from pararnn.compiler.program import Kind
from pararnn.compiler.tracing import trace
from pararnn.solver.planner import Plan

pytest.importorskip("triton")

from pararnn.compiler.gpu import backward
from pararnn.compiler.gpu.backward_planning import Cut, cut_for

CUTS = {
    "walk": Cut(variant="walk", block_state=4, warps=1, ahead=3),
    "tile": Cut(variant="tile", block_state=4, warps=1, ahead=2, intervals=8),
    "across": Cut(variant="across", block_state=4, warps=1, ahead=2, intervals=3),
}
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
ON_CPU = [pytest.param((cut, "cpu"), id=f"triton {name}") for name, cut in CUTS.items() if INTERPRETED]
ON_GPU = [pytest.param((cut, "cuda"), id=f"triton {name}, gpu", marks=pytest.mark.gpu) for name, cut in (*CUTS.items(), ("auto", None))]
everywhere = pytest.mark.parametrize("place", [*ON_CPU, *ON_GPU])
# NumPy, which the interpreter works with, reports what a GPU does not.
overflowing = pytest.mark.filterwarnings("ignore::RuntimeWarning")
on_gpu = pytest.mark.parametrize("place", ON_GPU)
HALF = {torch.float16: 2**-10, torch.bfloat16: 2**-7}


def gated(state, drive):
    rate, candidate, elapsed, recurrent = drive
    return torch.lerp(torch.tanh(candidate + recurrent * state), state, torch.exp(-F.softplus(rate) * elapsed))


def scaled(state, drive):
    decay, term, scale = drive
    return decay * state + scale * term


def leaky(state, drive):
    decay, term, _unused = drive
    return decay * state + term


GATED = (Kind.ELEMENT, Kind.ELEMENT, Kind.STEP, Kind.CHANNEL)
SCALED = (Kind.ELEMENT, Kind.ELEMENT, Kind.SCALAR)
LEAKY = (Kind.CHANNEL, Kind.ELEMENT, Kind.ELEMENT)
STEPS = {"gated": (gated, GATED), "scaled": (scaled, SCALED), "leaky": (leaky, LEAKY)}
SIZES = {
    Kind.ELEMENT: lambda rows, length, state: (rows, length, state),
    Kind.STEP: lambda rows, length, state: (rows, length, 1),
    Kind.CHANNEL: lambda rows, length, state: (state,),
    Kind.SCALAR: lambda rows, length, state: (),
}


class Case:
    """A program, tensors, and where they are."""

    def __init__(self, place, name, rows, length, state, *, dtype=torch.float64, bounds=None, seed=0):
        self.cut, self.device = place
        step, self.kinds = STEPS[name]
        one = [torch.zeros(SIZES[kind](1, 1, state), dtype=torch.float64) for kind in self.kinds]
        leaves = tuple(leaf[:, 0] if kind.is_timed else leaf for kind, leaf in zip(self.kinds, one, strict=True))
        traced = trace(step, torch.zeros(1, state, dtype=torch.float64), leaves, {}, timed=[kind.is_timed for kind in self.kinds])
        # With one channel, what runs along the sequence counts as by channel.
        self.program, self.kinds = traced.program, traced.program.kinds
        numbers = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(shape, generator=numbers, dtype=torch.float64).to(dtype).to(self.device)

        self.operands = [0.5 * draw(*SIZES[kind](rows, length, state)) for kind in self.kinds]
        self.operands = [one.abs() if kind is Kind.STEP else one for kind, one in zip(self.kinds, self.operands, strict=True)]
        self.bounds = bounds
        self.initial = draw(rows if bounds is None else len(bounds) - 1, state)
        self.grad = draw(rows, length, state)
        self.needs = [True] * (len(self.kinds) + 1)
        self.states = None

    @property
    def offsets(self):
        return None if self.bounds is None else torch.tensor(self.bounds, device=self.device)

    def solved(self):
        """The states, computed where the oracle is fast."""
        if self.states is None:
            offsets = None if self.bounds is None else torch.tensor(self.bounds)
            states = reference.walk(self.program, [one.cpu() for one in self.operands], self.initial.cpu(), offsets)
            self.states = states.to(self.device)
        return self.states

    def found(self, **options):
        longest = max(end - start for start, end in itertools.pairwise(self.bounds)) if self.bounds else self.grad.shape[1]
        plan = Plan(interval=1, length=longest, lanes=1, walk=0.0, sweep=0.0, parallel=0.0, patience=1, by_autograd=False, reason="a test")
        return backward.launch(
            self.program,
            self.grad,
            self.solved(),
            self.operands,
            self.initial,
            offsets=self.offsets,
            plan=plan,
            needs=self.needs,
            cut=self.cut,
            **options,
        )

    def expected(self, dtype=torch.float64):
        tensors = [one.detach().cpu().to(dtype) for one in (self.grad, self.solved(), *self.operands, self.initial)]
        offsets = None if self.bounds is None else torch.tensor(self.bounds)
        return reference.backward(self.program, *tensors[:2], tensors[2:-1], tensors[-1], offsets)


def hold(found, expected, bound, needs=None):
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        if needs is not None and not needs[index]:
            assert one is None
            continue
        assert one.shape == other.shape
        error = (one.cpu().to(other.dtype) - other).abs().max() if other.numel() else 0.0
        assert error <= bound * other.abs().max().clamp_min(1), f"gradient {index} is off by {error:.1e}"


def same(found, expected):
    """Numbers equal to a few units in the last place, and the rest in the same places."""
    tolerance = 1e-4 if expected[0].dtype == torch.float32 else 1e-10
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=tolerance, atol=0, equal_nan=True)


@everywhere
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 9, 5), (1, 35, 3)], ids=str)
def test_gradients_are_those_of_the_walk(place, name, shape):
    case = Case(place, name, *shape)
    hold(case.found(), case.expected(), 1e-12)


@everywhere
def test_packed_sequences_do_not_see_each_other_and_may_be_empty(place):
    case = Case(place, "gated", 1, 29, 5, bounds=[0, 0, 1, 19, 19, 27, 29])
    hold(case.found(), case.expected(), 1e-12)


@everywhere
@pytest.mark.parametrize("needs", [(1, 0, 0, 1, 1), (0, 0, 1, 0, 0), (0, 0, 0, 0, 1), (0, 0, 0, 0, 0)], ids=str)
def test_only_what_is_needed_is_computed(place, needs):
    case = Case(place, "gated", 2, 7, 3)
    case.needs = [bool(need) for need in needs]
    hold(case.found(), case.expected(), 1e-12, case.needs)


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
def test_precision_is_that_of_the_numbers(place, dtype):
    case = Case(place, "gated", 2, 13, 3, dtype=dtype)
    found = case.found()
    assert {one.dtype for one in found} == {dtype}
    hold(found, case.expected(), HALF.get(dtype, 1e-5))


@everywhere
def test_sums_are_carried_in_single_precision_where_tensors_are_half(place):
    case = Case(place, "leaky", 1, 40, 1, dtype=torch.float16)
    case.operands[0].fill_(0)
    case.initial.fill_(0)
    case.operands[1].fill_(1)
    case.states = torch.ones_like(case.grad)
    case.grad = torch.full_like(case.grad, 2**-11)
    case.grad[0, -1] = 1
    # In half precision one would stay one, whatever small is added.
    assert case.found()[0].item() == torch.tensor(1 + 38 * 2**-11).half().item()


@everywhere
def test_gradients_may_be_written_over_operands(place):
    case, other = (Case(place, "gated", 2, 19, 5) for _ in range(2))
    joint = torch.cat(case.operands[:2], dim=2)
    case.solved()
    case.operands[:2] = joint.split(5, dim=2)
    found = case.found(into=[*case.operands[:2], None, None])
    assert all(one is operand for one, operand in zip(found[:2], case.operands[:2], strict=True))
    hold(found, other.expected(), 1e-12)


@everywhere
def test_targets_with_gaps_between_channels_are_filled(place):
    case = Case(place, "scaled", 1, 9, 3)
    target = torch.full((1, 9, 6), torch.nan, dtype=torch.float64, device=case.device)[..., ::2]
    found = case.found(into=[target, None, None])
    assert found[0] is target
    hold(found, case.expected(), 1e-12)


STRIDES = {
    "time first": lambda tensor: tensor.transpose(0, 1).contiguous().transpose(0, 1),
    "channels first": lambda tensor: tensor.mT.contiguous().mT,
    "one number for all": lambda tensor: tensor[:1, :1, :1].expand_as(tensor),
    "one row for all": lambda tensor: tensor[:1].expand_as(tensor),
}


@everywhere
@pytest.mark.parametrize("strides", STRIDES)
def test_tensors_are_read_as_they_lie(place, strides):
    case = Case(place, "scaled", 2, 9, 3)
    case.grad = STRIDES[strides](case.grad)
    case.operands[0] = STRIDES[strides](case.operands[0])
    hold(case.found(), case.expected(), 1e-12)


@everywhere
def test_all_memory_is_written(place, monkeypatch):
    case = Case(place, "gated", 1, 23, 5, bounds=[0, 0, 4, 23])
    expected = case.expected()
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, **options: empty(*shape, **options).fill_(torch.nan))
    hold(case.found(), expected, 1e-12)


@everywhere
def test_intervals_are_bounded_by_a_scan_where_they_are_many(place, monkeypatch):
    monkeypatch.setattr("pararnn.compiler.gpu.backward_planning.FOLDED", 0)
    monkeypatch.setattr("pararnn.compiler.gpu.backward_prepared.BOUNDARY", 2)
    backward.forget()
    case = Case(place, "gated", 1, 23, 3, bounds=[0, 0, 4, 23])
    hold(case.found(), case.expected(), 1e-12)
    backward.forget()


@overflowing
@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_products_that_overflow_leave_finite_gradients_alone(place, dtype):
    case = Case(place, "scaled", 1, 31, 3, dtype=dtype)
    big = 1e30 if dtype == torch.float32 else 1e250
    case.operands[0].fill_(big)
    case.operands[1].zero_()
    case.initial.zero_()
    case.grad[:, 1:].zero_()
    found = case.found()
    assert all(one.isfinite().all() for one in found)
    same(found, case.expected(dtype))


@overflowing
@everywhere
@pytest.mark.parametrize("many", [False, True], ids=["folded", "scanned"])
def test_digits_that_products_lose_are_not_missed(place, many, monkeypatch):
    if many:
        monkeypatch.setattr("pararnn.compiler.gpu.backward_planning.FOLDED", 0)
    backward.forget()
    case = Case(place, "scaled", 2, 31, 3, dtype=torch.float32)
    case.operands[0].fill_(1e4)
    case.operands[0][:, :4] = 0
    # Costates begin large, so the walk itself loses nothing; products of ten such slopes do.
    case.operands[0][:, 14:] = 1e-4
    case.grad.zero_()
    case.grad[:, 26] = 1e35
    same(case.found(), case.expected(torch.float32))
    backward.forget()


@overflowing
@everywhere
def test_what_is_not_a_number_stays_where_the_walk_has_it(place):
    case = Case(place, "scaled", 2, 23, 3)
    case.grad[0, 11, 1] = torch.nan
    found, expected = case.found(), case.expected()
    same(found[:2], expected[:2])
    assert torch.equal(found[-1].isnan().cpu(), expected[-1].isnan())
    assert found[-1].isnan().sum() == 1


@everywhere
@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3), (2, 5, 0)], ids=str)
def test_nothing_has_gradients_of_zero(place, shape):
    case = Case(place, "scaled", *shape)
    case.states = torch.empty_like(case.grad)
    assert all(not one.any() for one in case.found())


@pytest.mark.parametrize(
    ("sequences", "longest", "state", "variant"),
    [(32, 8192, 1024, "walk"), (1, 131072, 64, "across"), (8, 8, 64, "walk"), (1, 1, 1, "walk")],
    ids=str,
)
def test_many_lanes_are_walked_and_few_are_cut_by_triton(sequences, longest, state, variant):
    assert cut_for(sequences, longest, state, itemsize=4, processors=132).variant == variant


def test_triton_cuts_do_not_exceed_their_sequences():
    for sequences, longest, state in itertools.product((1, 3, 64), (1, 17, 100, 8193), (1, 5, 300)):
        cut = cut_for(sequences, longest, state, itemsize=8, processors=132)
        assert cut.intervals == 1 or cut.intervals <= longest
        assert cut.block_state < 2 * state


@on_gpu
@pytest.mark.parametrize("shape", [(8, 512, 64), (3, 1037, 77), (1, 8193, 5)], ids=str)
def test_larger_gradients_are_those_of_the_walk_on_a_gpu_to_the_bit_each_time(place, shape):
    case = Case(place, "gated", *shape, dtype=torch.float32)
    found = case.found()
    hold(found, case.expected(), 1e-4)
    for _ in range(3):
        assert all(torch.equal(one, other) for one, other in zip(found, case.found(), strict=True))


@on_gpu
def test_a_backward_pass_can_be_captured_and_does_not_wait_for_the_gpu(place):
    case = Case(place, "gated", 2, 300, 70, dtype=torch.float32)
    expected = [one.clone() for one in case.found()]
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        found = case.found()
    for one in found:
        one.fill_(torch.nan)
    graph.replay()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
