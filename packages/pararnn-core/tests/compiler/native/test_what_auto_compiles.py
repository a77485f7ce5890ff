"""From which sizes on `"auto"` compiles a step on the CPU."""

import pytest

from pararnn.compiler.native import backend
from pararnn.selection import Request

FEW = "are few: 'auto' compiles from 512 steps or 32768 numbers on, or from 64 steps with 4096 numbers"


def says_few(rows, time, state, *, needs_grad=True, **options):
    request = Request.of("solve", rows=rows, time=time, state=state, needs_grad=needs_grad, options=options)
    return any(FEW in reason for reason in backend.reasons(request))


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("shape", [(1, 512, 1), (32, 16, 64), (8, 64, 8), (8, 100, 16), (4, 200, 8)], ids=str)
def test_auto_compiles_what_a_few_hundred_solves_pay_for(shape, needs_grad):
    assert not says_few(*shape, needs_grad=needs_grad, automatic=True)


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("shape", [(1, 511, 8), (32, 16, 63), (32, 63, 8), (2, 64, 4)], ids=str)
def test_auto_leaves_smaller_solves_to_torch_and_says_from_where_on_it_would_not(shape, needs_grad):
    assert says_few(*shape, needs_grad=needs_grad, automatic=True)


def test_a_backend_that_is_named_compiles_the_smallest_solve():
    assert not says_few(1, 1, 1)


def test_a_graph_that_torch_compiles_may_serve_any_size():
    assert not says_few(1, 1, 1, automatic=True, compiling=True)
