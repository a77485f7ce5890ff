"""The check of compiled cells finds engines that are wrong in one thing, and says where nothing can be compiled."""

import pytest
import torch
from reference_engine import ReferenceEngine
from toy_cells import make_cell

from pararnn.compiler import reference
from pararnn.compiler.serving import obstacles, serve
from pararnn.conformance import check_compiled_equals_walk
from pararnn.distributions import discover
from pararnn.errors import ConformanceError
from pararnn.registry import Registry, using


class ForgetsTheFirstState(ReferenceEngine):
    def backward(self, *arguments, **options):
        *found, start = super().backward(*arguments, **options)
        return [*found, torch.zeros_like(start)]


class DoublesTheGradientOfAChannel(ReferenceEngine):
    def backward(self, *arguments, **options):
        gradients = super().backward(*arguments, **options)
        return [2 * gradient if gradient is not None and gradient.shape == (4,) else gradient for gradient in gradients]


class RunsOnFromOneSequenceIntoTheNext(ReferenceEngine):
    def solve(self, program, operands, initial, *, offsets, plan, tolerance):
        states, record = super().solve(program, operands, initial, offsets=offsets, plan=plan, tolerance=tolerance)
        return (states if offsets is None else reference.walk(program, operands, initial[:1], None)), record


class IsOffInSinglePrecision(ReferenceEngine):
    def solve(self, program, operands, initial, **options):
        states, record = super().solve(program, operands, initial, **options)
        return (states + 1e-3 if states.dtype is torch.float32 else states), record


class IsOffInIntervals(ReferenceEngine):
    def solve(self, program, operands, initial, *, plan, **options):
        states, record = super().solve(program, operands, initial, plan=plan, **options)
        return (states if plan.walks else states.roll(1, dims=1)), record


@pytest.fixture
def theirs(candidate, backend, objects):
    """Install an engine as the only one there is, besides plain PyTorch."""

    def install(made):
        def solve(problem, config):
            return serve(made, problem, config)

        solve.engine = lambda: made
        objects.implementation, objects.reasons = solve, lambda request: obstacles(made, request)
        core = [one for one in discover() if one.distribution == "pararnn-core"]
        offers = candidate(pararnn_register_backends=[backend("theirs", op="solve", priority=1000, reasons="fake_objects:reasons")])
        return using(Registry.of([*core, offers], environ={}))

    return install


@pytest.fixture
def only_theirs(theirs, monkeypatch):
    """The same, with the engines of the core out of the way: nothing is compiled for these tests."""

    def install(made):
        monkeypatch.setattr("pararnn.conformance.cell_engines.engines", lambda: iter([("theirs", made)]))
        return theirs(made)

    return install


def test_a_right_engine_passes_and_has_solved_every_case_itself(only_theirs, define):
    made = ReferenceEngine()
    with only_theirs(made):
        assert check_compiled_equals_walk(*define()) is None
    # Two precisions, batched and packed, walked and in intervals.
    assert (made.solves, made.backwards) == (8, 8)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (ForgetsTheFirstState, r"batched, torch.float64, walked\), the gradient by h0 and what the walk gives differ"),
        (DoublesTheGradientOfAChannel, r"batched, torch.float64, walked\), the gradient by recurrent and what"),
        (RunsOnFromOneSequenceIntoTheNext, r"packed, torch.float64, walked\), the states and what"),
        (IsOffInSinglePrecision, r"batched, torch.float32, walked\), the states and what"),
        (IsOffInIntervals, r"batched, torch.float64, in intervals\), the states and what"),
    ],
)
def test_an_engine_that_is_wrong_in_one_thing_is_caught(only_theirs, define, wrong, message):
    with only_theirs(wrong()), pytest.raises(ConformanceError, match=f"compiled by 'theirs' .{message}"):
        check_compiled_equals_walk(*define())


def test_a_wrong_engine_is_caught_beside_right_ones(theirs, define):
    with theirs(ForgetsTheFirstState()), pytest.raises(ConformanceError, match="compiled by 'theirs'"):
        check_compiled_equals_walk(*define())


def test_a_step_that_no_engine_takes_is_not_applicable_and_says_why(only_theirs):
    with only_theirs(ReferenceEngine()):
        reason = check_compiled_equals_walk(make_cell("complex pole"), torch.randn(3, 20, 3, dtype=torch.float64))
    assert reason.startswith("theirs: it works in float16, bfloat16, float32, float64, the states are complex128")


def test_engines_with_the_same_obstacle_say_it_once():
    reason = check_compiled_equals_walk(make_cell("dense RNN"), torch.randn(3, 20, 3, dtype=torch.float64))
    assert reason.count("whose structure is Diagonal; this one is") == 1
    assert "triton, native: it compiles channelwise steps" in reason


def test_an_engine_of_a_gpu_is_asked_there_where_there_is_one(only_theirs, define, monkeypatch):
    class OfAGpu(ReferenceEngine):
        device = "cuda"

        def reasons(self, request):
            return (f"asked on {request.device}",)

    with only_theirs(OfAGpu()):
        assert check_compiled_equals_walk(*define()) == "theirs: asked on cpu"
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert check_compiled_equals_walk(*define()) == "theirs: asked on cuda"


def test_without_an_engine_it_is_not_applicable(monkeypatch, define):
    monkeypatch.setattr("pararnn.conformance.cell_engines.engines", lambda: iter(()))
    assert "no installed plugin offers an engine" in check_compiled_equals_walk(*define())
