"""Which solves are compiled: by the amount of work, the solver, transforms and precision around; one that cannot be says why."""

import pickle

import pytest
import torch
from solved_gates import COMPILED, result_of, sources
from toy_cells import DenseRNN, Gate, ToyCell, loop, weighted_sum

from pararnn import BackendError, InputError, NewtonConfig, ParaRNN, newton_apply
from pararnn.compiler.native import backend
from pararnn.errors import CompilationError
from pararnn.solver.api import cell_problem


def test_auto_compiles_where_there_is_enough_to_do(engine):
    cell, x, _ = sources(length=2000, batch=1)
    with torch.no_grad():
        assert result_of(cell, x[:, :20], NewtonConfig()).backend == "torch"
        assert result_of(cell, x, NewtonConfig()).backend == "reference"


@pytest.mark.parametrize("solver", ["auto", "newton", "sequential"])
def test_every_solver_of_the_layer_gives_the_states_of_the_loop(solver, engine, tolerance):
    cell, x, h0 = sources()
    layer = ParaRNN(cell, solver=solver, config=COMPILED)
    torch.testing.assert_close(layer(x, h0), loop(cell, x, h0), **tolerance["states"])
    assert engine.solves == (solver != "sequential")


def test_second_derivatives_that_are_asked_for_come_from_another_backend(engine):
    cell, x, _ = sources(length=2000, batch=1)
    auto = NewtonConfig(derivatives="twice")
    assert result_of(cell, x, auto).backend == "torch"
    assert engine.solves == 0


def differentiated(apply, cell, x):
    return torch.func.grad(lambda x: weighted_sum(apply(cell, x)))(x)


def mapped(apply, cell, x):
    both = torch.stack((x, -x))
    return torch.stack([apply(cell, one) for one in both]) if apply is loop else torch.vmap(lambda x: apply(cell, x))(both)


def forward_mode(apply, cell, x):
    return torch.func.jvp(lambda x: apply(cell, x), (x,), (torch.ones_like(x),))[1]


@pytest.mark.parametrize("transform", [differentiated, mapped, forward_mode])
def test_transforms_are_served_by_another_backend(transform, engine, monkeypatch, tolerance):
    monkeypatch.setattr(backend, "STEPS", 1)
    cell, x, _ = sources()
    newton_apply(cell, x)
    assert engine.solves == 1
    ours, truth = (transform(apply, cell, x.detach()) for apply in (newton_apply, loop))
    torch.testing.assert_close(ours, truth, **tolerance["gradients"])
    assert engine.solves == 1


def test_autocast_changes_nothing_inside_the_solve():
    cell, x = Gate(4, 3, dtype=torch.float32), torch.randn(2, 11, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states = newton_apply(cell, x, COMPILED)
        drive = cell.drive(x)
    assert states.dtype == torch.float32
    drive = type(drive)(*(leaf.float() for leaf in drive))
    cell.drive = lambda x: drive
    torch.testing.assert_close(states, newton_apply(cell, x, COMPILED), rtol=0, atol=0)


def test_a_backend_that_is_named_and_cannot_gives_the_table_of_reasons():
    cell, x = DenseRNN(3, 4), torch.randn(2, 11, 3, dtype=torch.float64)
    with pytest.raises(BackendError, match=r"'native' was asked for and cannot serve.*\n(.*\n)*.*whose structure is Diagonal; this one is Dense"):
        newton_apply(cell, x, COMPILED)


class Counting(ToyCell):
    """Channelwise in truth, but its step sorts, which no kernel does."""

    def step(self, state, drive):
        return torch.tanh(state + drive.sort(dim=-1).values)


def test_a_step_that_cannot_be_compiled_is_named_with_what_it_does():
    x = torch.randn(2, 11, 3, dtype=torch.float64)
    with pytest.raises(BackendError, match="sort"):
        newton_apply(Counting(3), x, COMPILED)
    problem = cell_problem(Counting(3), x, COMPILED)
    with pytest.raises(CompilationError, match="sort"):
        backend.solve(problem, COMPILED)


def told(cell, length=2000, **options):
    """The line of `explain()` on who solved."""
    x = torch.randn(1, length, 3, dtype=torch.float64)
    with torch.no_grad():
        result = ParaRNN(cell, config=NewtonConfig(**options)).solve(x)[1][0]
    again = pickle.loads(pickle.dumps(result))
    assert again.explain() == result.explain()
    return result.explain().splitlines()[1]


def test_a_result_says_why_a_backend_of_higher_priority_did_not_solve_it():
    line = told(Counting(3))
    assert line.startswith("Solved by torch; native could not: ")
    assert "sort" in line
    assert "test_choice.py, line" in line
    assert told(Counting(3), derivatives="twice").startswith("Solved by torch; native could not: NewtonConfig(derivatives='twice') asks for")
    assert "structure is Diagonal; this one is Dense" in told(DenseRNN(3, 4))
    assert "20 steps" in told(Gate(3, 4), length=20)


def test_a_result_says_nothing_of_backends_for_other_devices_and_of_a_choice_that_was_the_first():
    assert told(Gate(3, 4)) == "Solved by reference."
    assert told(Counting(3), backend="torch") == "Solved by torch."


class Unsure(Counting):
    """Reads what cannot be compared, so that no choice is remembered for its step."""

    def __init__(self, size):
        super().__init__(size)
        self.setting = object()

    def step(self, state, drive):
        return super().step(state, drive) if self.setting else state


def test_a_result_of_a_step_that_is_asked_about_each_time_says_why_each_time():
    cell = Unsure(3)
    assert not cell_problem(cell, torch.zeros(1, 30, 3, dtype=torch.float64), NewtonConfig()).identity.is_sure
    assert "sort" in told(cell)
    assert told(cell) == told(cell)


@pytest.mark.parametrize(
    "options",
    [{"derivatives": "twice"}, {"on_stall": "raise"}, {"scan_backend": "torch"}],
    ids=lambda options: next(iter(options)),
)
def test_an_option_that_kernels_do_not_have_is_named(options):
    cell, x, _ = sources()
    (name,) = options
    with pytest.raises(BackendError, match=rf"NewtonConfig\({name}="):
        newton_apply(cell, x, NewtonConfig(backend="native", **options))


def test_an_input_that_is_not_finite_is_named_on_the_cpu():
    cell, x, _ = sources()
    with torch.no_grad():
        x[1, 3, 0] = torch.nan
    with pytest.raises(InputError, match="first at batch 1, step 3"):
        newton_apply(cell, x, COMPILED)
