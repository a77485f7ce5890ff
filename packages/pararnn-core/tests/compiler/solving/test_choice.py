"""Which solves are compiled: by the amount of work, the solver, transforms and precision around; one that cannot be says why."""

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
