"""Backends of a cell's own operations: asked before the drive is computed, told what they must know, passed over where they cannot serve."""

import types
from typing import NamedTuple

import pytest
import torch
from toy_cells import Tanh, loop

from pararnn import NewtonConfig, ParaRNN, Status, newton_apply
from pararnn.distributions import discover
from pararnn.registry import Registry, using
from pararnn.solver import torch_backend
from pararnn.solver.api import cell_problem
from pararnn.specs import OpSpec

NAMED = NewtonConfig(backend="trial")


class Own(Tanh):
    """Names an operation of its own, and can say why it is not what that was made for."""

    solve_ops = ("toy/solve",)
    obstacles = ()

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.drives = 0

    def drive(self, x):
        self.drives += 1
        return x

    def solve_obstacles(self):
        return self.obstacles


@pytest.fixture
def calls():
    return []


@pytest.fixture(autouse=True)
def offered(calls, candidate, backend, objects):
    """A backend of `toy/solve` that takes inputs, beside what is installed."""

    def implementation(cell, x, config, *, h0, cu_seqlens, guess):
        calls.append({"h0": h0, "cu_seqlens": cu_seqlens, "guess": guess})
        return torch_backend.walked(cell_problem(cell, x, config, h0=h0, cu_seqlens=cu_seqlens, guess=guess))

    def reasons(request):
        calls.append(request)
        return request.option("obstacles", ()) + (("it walks in one mode",) if request.option("transformed") else ())

    implementation.takes_inputs = True
    objects.within, objects.no_reasons = types.SimpleNamespace(implementation=implementation), reasons
    op = OpSpec(name="toy/solve", target="fake_objects:within.implementation", summary="a toy")
    trial = backend("trial", op="toy/solve", target="fake_objects:within.implementation")
    with using(Registry.of([*discover(), candidate(pararnn_register_ops=[op], pararnn_register_backends=[trial])])):
        yield


def inputs(length=30):
    return torch.randn(2, length, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def served(calls):
    return [call for call in calls if isinstance(call, dict)]


def asked(calls):
    return [call for call in calls if not isinstance(call, dict)]


@pytest.mark.parametrize("apply", [newton_apply, lambda cell, x: ParaRNN(cell)(x)], ids=["newton_apply", "layer"])
def test_a_backend_that_takes_inputs_is_called_before_the_drive_is_computed(apply, calls, tolerance):
    cell, x = Own(3), inputs()
    states = apply(cell, x)
    assert len(served(calls)) == 1
    assert cell.drives == 1
    torch.testing.assert_close(states, loop(cell, x), **tolerance["states"])


def test_what_the_user_gave_is_handed_on(calls):
    cell, x = Own(3), inputs()[:1]
    given = {"h0": torch.ones(2, 3, dtype=torch.float64), "cu_seqlens": torch.tensor([0, 10, 30]), "guess": x}
    newton_apply(cell, x, **given)
    (found,) = served(calls)
    assert all(found[name] is given[name] for name in given)


def test_the_request_says_what_reasons_may_want_to_know(calls):
    newton_apply(Own(3), inputs(), NewtonConfig(derivatives="twice"))
    (request,) = asked(calls)
    assert (request.op, request.device, request.dtype, request.needs_grad) == ("toy/solve", "cpu", "float64", True)
    assert (request.size("rows"), request.size("time"), request.size("state")) == (2, 30, 3)
    assert (request.option("cell"), request.option("derivatives"), request.option("automatic")) == ("Own", "twice", True)


def test_a_question_is_asked_once(calls):
    cell = Own(3)
    for _ in range(3):
        newton_apply(cell, inputs())
    assert (len(asked(calls)), len(served(calls))) == (1, 3)


def test_a_cell_that_says_it_is_another_is_solved_in_general(calls, tolerance):
    cell, x = Own(3), inputs()
    newton_apply(cell, x)
    cell.obstacles = ("a hook listens to it",)
    torch.testing.assert_close(newton_apply(cell, x), loop(cell, x), **tolerance["states"])
    assert len(served(calls)) == 1


def test_a_transform_is_told_of(calls):
    torch.func.grad(lambda x: newton_apply(Own(3), x).sum())(inputs())
    assert not served(calls)
    assert any(request.option("transformed") for request in asked(calls))


def test_a_named_backend_of_the_general_solve_goes_before_the_own_operation(calls):
    result = ParaRNN(Own(3), config=NewtonConfig(backend="torch")).solve(inputs())[1][0]
    assert (result.backend, result.status is Status.CONVERGED or result.walked > 0) == ("torch", True)
    assert not served(calls)


def test_a_named_backend_of_the_own_operation_serves(calls):
    newton_apply(Own(3), inputs(), NAMED)
    assert len(served(calls)) == 1


def test_the_sequential_solver_asks_nobody(calls):
    ParaRNN(Own(3), solver="sequential")(inputs())
    assert not calls


class States(NamedTuple):
    """As much of a result as a layer looks at."""

    states: torch.Tensor
    final: torch.Tensor


def once(cell, x, config, *, h0, cu_seqlens, guess):
    states = torch.tanh(cell.weight * x)
    return States(states, states[:, -1])


def test_a_graph_holds_the_call_of_a_backend_that_takes_inputs(objects, tolerance):
    once.takes_inputs = True
    objects.within.implementation = once
    cell = Own(3)
    torch.compiler.reset()
    compiled = torch.compile(ParaRNN(cell), fullgraph=True, backend="eager")
    with torch.no_grad():
        for length in (30, 20, 10):
            torch.testing.assert_close(compiled(inputs(length)), torch.tanh(cell.weight * inputs(length)), **tolerance["states"])
    torch.compiler.reset()
