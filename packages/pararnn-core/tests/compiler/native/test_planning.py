"""Walk or shoot, how passes are cut out of a program, and what their lines look like."""

import pytest
import torch

from pararnn.compiler.engine import Workload
from pararnn.compiler.native.graph import Graph
from pararnn.compiler.native.layout import shooting, walking
from pararnn.compiler.native.printer import PATTERNS, lines, number
from pararnn.compiler.native.stages import backward_stages, forward_stages
from pararnn.compiler.primitives import PRIMITIVES
from pararnn.compiler.program import Expression, Operation


def planned(one, rows, length, state, interval="auto"):
    work = Workload(rows=rows, length=length, state=state, sequences=rows, longest=length, itemsize=4)
    return one.engine.plan(one.program, work, interval)


@pytest.mark.parametrize("size", [(1, 65536, 1), (2, 4096, 1), (1, 16384, 4)], ids=str)
def test_few_lanes_of_a_slow_step_shoot(subject, size):
    plan = planned(subject("cfc", 1, 1, 1), *size)
    assert not plan.walks
    assert "estimated" in plan.explain()


@pytest.mark.parametrize("size", [(8, 4096, 64), (32, 1024, 128), (1, 4096, 64), (1, 20, 1)], ids=str)
def test_many_lanes_and_short_sequences_walk(subject, size):
    assert planned(subject("cfc", 1, 1, 1), *size).walks


def test_a_quick_step_walks_with_fewer_lanes_than_a_slow_one(subject):
    quick, slow = ([lanes for lanes in range(1, 33) if not planned(subject(name, 1, 1, 1), 1, 65536, lanes).walks] for name in ("linear", "cfc"))
    assert max(quick) < max(slow) < 32


@pytest.mark.parametrize(("asked", "interval"), [(7, 7), (10**6, 300), (1, 1)])
def test_an_interval_that_is_asked_for_is_taken(subject, asked, interval):
    plan = planned(subject("cfc", 1, 1, 1), 4, 300, 64, asked)
    assert plan.interval == interval
    assert plan.patience > 0


def test_parallel_shoots_where_the_walk_would_be_faster(subject):
    plan = planned(subject("cfc", 1, 1, 1), 8, 4096, 64, "parallel")
    assert not plan.walks
    assert plan.parallel >= plan.walk
    assert plan.reason.startswith("a parallel solve was asked for (estimated at ")
    assert plan.reason.endswith("would be quicker)")


def test_a_parallel_solve_that_is_quicker_says_so_whether_it_was_asked_for_or_not(subject):
    chosen, asked = (planned(subject("cfc", 1, 1, 1), 1, 65536, 1, interval) for interval in ("auto", "parallel"))
    assert not chosen.walks
    assert chosen.reason == asked.reason
    assert "asked for" not in chosen.reason


@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("state", [1, 5, 16, 31, 32, 70, 256, 300, 1024, 1025])
@pytest.mark.parametrize("sequences", [1, 3, 40])
def test_layouts_cover_all_channels_with_whole_vectors(sequences, state, itemsize):
    for layout in (walking(sequences, state, 1000, itemsize), shooting(state, 1000, 16, itemsize)):
        blocks = -(-state // layout.block)
        assert (blocks - 1) * layout.block < state
        assert blocks == 1 or layout.block % (64 // itemsize) == 0
        assert layout.together >= 1
        assert layout.capacity >= 1


def test_what_does_not_see_the_state_is_computed_beforehand(subject):
    stages = forward_stages(subject("cfc", 1, 1, 1).program)
    assert {"softplus", "exp"} <= {operation.primitive for operation in stages.early.operations}
    assert {"softplus", "exp"}.isdisjoint(operation.primitive for operation in (*stages.value.operations, *stages.advance.operations))


def test_what_channels_decide_is_computed_once(subject):
    program = subject("gated", 1, 1, 1).program
    for stages in (forward_stages(program), backward_stages(program, (True,) * 4)):
        names = {"o2", "o3"}
        for operation in stages.still.operations:
            assert all(argument in names for argument in operation.arguments if isinstance(argument, str))
            names.add(operation.result)


def test_gradients_that_are_not_needed_cost_nothing(subject):
    program = subject("cfc", 1, 1, 1).program
    everything, nothing = backward_stages(program, (True,) * 4), backward_stages(program, (False,) * 4)
    assert not nothing.late.operations
    assert len(nothing.early.operations) < len(everything.early.operations)


def test_equal_operations_are_one():
    graph = Graph({"x": 1})
    expression = Expression(("x",), (Operation("a", "exp", ("x",)), Operation("b", "exp", ("x",)), Operation("c", "add", ("a", "b"))), ("c",))
    (result,) = graph.add(expression, {"x": "x"})
    assert [operation.primitive for operation in graph.operations.values()] == ["exp", "add"]
    assert graph.stages[result] == 1


def test_zeros_of_either_sign_are_two_constants():
    graph = Graph({})
    outputs = graph.add(Expression((), (Operation("a", "div", (1.0, 0.0)), Operation("b", "div", (1.0, -0.0))), ("a", "b")), {})
    assert len(set(outputs)) == 2


def test_every_primitive_has_a_line():
    assert set(PATTERNS) == set(PRIMITIVES)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "(real)0.5"),
        (-0.0, "(real)-0.0"),
        (torch.inf, "(real)INFINITY"),
        (-torch.inf, "(real)-INFINITY"),
        (torch.nan, "(real)NAN"),
        (3, "(real)3.0"),
    ],
)
def test_constants_are_written_as_c_reads_them(value, text):
    assert number(value, set()) == text


def test_truth_values_become_numbers_where_numbers_are_wanted():
    operations = [Operation("a", "lt", ("x", 1.0)), Operation("b", "where", ("a", "a", 0.0)), Operation("c", "and", ("a", "x"))]
    assert lines(operations, set()) == ["const word a = x < (real)1.0;", "const real b = a ? (real)a : (real)0.0;", "const word c = a & (x != 0);"]


def test_the_source_holds_the_passes(engine, subject):
    text = engine.source(subject("cfc", 1, 1, 1).program)
    for name in ("early", "value", "advance", "late"):
        assert f"void {name}(const Bank *bank" in text
