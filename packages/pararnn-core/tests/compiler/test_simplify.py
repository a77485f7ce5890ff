"""Simpler expressions have the same results, infinities and NaN included."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pararnn.compiler.primitives import PRIMITIVES
from pararnn.compiler.program import Expression, Operation
from pararnn.compiler.reference import evaluate
from pararnn.compiler.simplify import restricted, simplified, split, with_input

NUMBERS = [0.0, 1.0, -1.0, 2.0, 0.5, -3.0, math.inf, -math.inf, math.nan]


def expression(*operations, inputs=("x", "y"), outputs):
    return Expression(inputs, tuple(Operation(*operation) for operation in operations), outputs)


def primitives(found):
    return [operation.primitive for operation in found]


@st.composite
def expressions(draw):
    numbers, truths, operations = ["x", "y"], [], []
    for index in range(draw(st.integers(1, 14))):
        name = draw(st.sampled_from([one for one in PRIMITIVES if one not in ("and", "or", "not", "where") or truths]))
        takes_truth = {"and": (0, 1), "or": (0, 1), "not": (0,), "where": (0,)}.get(name, ())
        arguments = tuple(
            draw(st.sampled_from(truths) if place in takes_truth else st.one_of(st.sampled_from(numbers), st.sampled_from(NUMBERS)))
            for place in range(PRIMITIVES[name].arguments)
        )
        operations.append(Operation(f"a{index}", name, arguments))
        (truths if PRIMITIVES[name].is_truth else numbers).append(f"a{index}")
    return Expression(("x", "y"), tuple(operations), tuple(numbers[-3:]))


GRID = torch.tensor([-math.inf, -2.5, -1.0, -0.5, 0.5, 1.0, 3.0, math.inf, math.nan], dtype=torch.float64)


@settings(max_examples=300, deadline=None)
@given(expressions())
def test_simplified_expressions_have_the_same_results(found):
    x, y = (values.reshape(-1) for values in torch.meshgrid(GRID, GRID, indexing="ij"))
    before, after = evaluate(found, x, y), evaluate(simplified(found), x, y)
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(other.double(), one.double(), equal_nan=True, rtol=1e-12, atol=0)


@settings(max_examples=100, deadline=None)
@given(expressions())
def test_an_expression_in_two_parts_has_the_same_results(found):
    x, y = GRID, GRID.flip(0)
    before, inside = split(found, {"x"})
    assert set(before.inputs) == {"y"}
    values = evaluate(before, y)
    for one, other in zip(evaluate(inside, x, y, *values), evaluate(found, x, y), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def test_common_operations_are_computed_once_in_any_order_of_arguments():
    found = simplified(expression(("a", "add", ("x", "y")), ("b", "add", ("y", "x")), ("c", "mul", ("a", "b")), outputs=("c",)))
    assert primitives(found) == ["add", "mul"]
    assert found.outputs == ("v1",)


def test_operations_that_nobody_needs_are_dropped():
    assert simplified(expression(("a", "exp", ("x",)), ("b", "tanh", ("y",)), outputs=("b",))).operations == (Operation("v0", "tanh", ("y",)),)


@pytest.mark.parametrize(
    ("primitive", "arguments"),
    [
        ("mul", ("x", 1.0)),
        ("mul", (1.0, "x")),
        ("add", ("x", 0.0)),
        ("add", (0.0, "x")),
        ("sub", ("x", 0.0)),
        ("div", ("x", 1.0)),
        ("pow", ("x", 1.0)),
    ],
)
def test_operations_that_change_nothing_are_dropped(primitive, arguments):
    found = simplified(expression(("a", primitive, arguments), outputs=("a",)))
    assert (found.operations, found.outputs) == ((), ("x",))


def test_nothing_that_can_be_nan_becomes_a_number():
    for primitive, arguments in (("mul", ("x", 0.0)), ("sub", ("x", "x")), ("div", ("x", "x")), ("div", (0.0, "x")), ("ne", ("x", "x"))):
        assert primitives(simplified(expression(("a", primitive, arguments), outputs=("a",)))) == [primitive]


def test_constants_are_computed():
    found = simplified(expression(("a", "exp", (1.0,)), ("b", "mul", ("a", 2.0)), ("c", "add", ("x", "b")), outputs=("c",)))
    assert found.operations == (Operation("v0", "add", ("x", 2 * math.e)),)


def test_signs_are_drawn_together():
    found = simplified(expression(("a", "neg", ("x",)), ("b", "mul", ("a", "y")), ("c", "add", ("x", "b")), outputs=("c",)))
    assert primitives(found) == ["mul", "sub"]


def test_an_input_can_be_a_constant():
    found = with_input(expression(("a", "mul", ("x", "y")), outputs=("a", "x")), "x", 1.0)
    assert (found.inputs, found.operations, found.outputs) == (("y",), (), ("y", 1.0))


def test_gradients_that_nobody_needs_cost_nothing():
    pull = expression(("a", "exp", ("x",)), ("b", "mul", ("a", "y")), ("c", "tanh", ("y",)), outputs=("b", "c"))
    assert primitives(restricted(pull, (False, True))) == ["tanh"]
    assert restricted(pull, (False, True)).inputs == pull.inputs
