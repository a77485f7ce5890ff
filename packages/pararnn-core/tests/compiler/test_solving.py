"""Compiled steps in the solver: gradients, packed sequences, records that wait to be read, refusals. PyTorch stands in for the engine."""

import copy
import dataclasses
import gc
import pickle
import weakref
from decimal import Decimal
from typing import NamedTuple

import pytest
import torch
from reference_engine import ReferenceEngine
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from toy_cells import DenseRNN, Gate, Tanh, ToyCell, loop, packed_loop, weighted_sum

from pararnn import BackendError, DifferentiationError, InputError, NewtonConfig, ParaRNN, Status, newton_apply
from pararnn.compiler import catalogue, ops, solving
from pararnn.compiler.native import backend
from pararnn.errors import CompilationError
from pararnn.selection import clear_cache
from pararnn.solver.api import cell_problem, run

COMPILED = NewtonConfig(backend="native")
OFFSETS = (0, 3, 3, 10, 11)


class Sources(NamedTuple):
    cell: Gate
    x: torch.Tensor
    h0: torch.Tensor

    def all(self):
        return [self.x, self.h0, *self.cell.parameters()]


@pytest.fixture(autouse=True)
def engine(monkeypatch):
    """The reference in the place of the native engine."""
    made = ReferenceEngine()
    monkeypatch.setattr(backend, "engine", lambda: made)
    monkeypatch.setattr(backend.solve, "engine", lambda: made)
    clear_cache()
    torch.manual_seed(0)
    yield made
    clear_cache()


def sources(length=11, batch=2, sequences=None):
    cell = Gate(4, 3)
    x = torch.randn(batch, length, 4, dtype=torch.float64, requires_grad=True)
    return Sources(cell, x, torch.randn(sequences or batch, 3, dtype=torch.float64, requires_grad=True))


def result_of(cell, x, config=COMPILED, **options):
    return run(cell_problem(cell, x, config, **options), config)


@pytest.mark.parametrize("length", [0, 1, 2, 11], ids="T{}".format)
def test_states_and_all_gradients_are_those_of_the_loop(engine, length, tolerance):
    cell, x, h0 = given = sources(length)
    states = newton_apply(cell, x, COMPILED, h0=h0)
    expected = loop(cell, x, h0) if length else x.new_zeros(2, 0, 3)
    torch.testing.assert_close(states, expected, **tolerance["states"])
    if length:
        ours, truth = (torch.autograd.grad(weighted_sum(found), given.all()) for found in (states, expected))
        torch.testing.assert_close(ours, truth, **tolerance["gradients"])
        assert (engine.solves, engine.backwards) == (1, 1)
    else:
        assert all(not gradient.any() for gradient in torch.autograd.grad(states.sum(), given.all()[:2], allow_unused=True) if gradient is not None)


def test_packed_sequences_are_solved_each_on_its_own(tolerance):
    cell, x, h0 = given = sources(batch=1, sequences=len(OFFSETS) - 1)
    result = result_of(cell, x, h0=h0, cu_seqlens=torch.tensor(OFFSETS))
    expected = packed_loop(cell, x, OFFSETS, h0)
    torch.testing.assert_close(result.states, expected, **tolerance["states"])
    torch.testing.assert_close(result.final, torch.stack((expected[0, 2], h0[1], expected[0, 9], expected[0, 10])), **tolerance["states"])
    ours, truth = (torch.autograd.grad(weighted_sum(states), given.all()) for states in (result.states, expected))
    torch.testing.assert_close(ours, truth, **tolerance["gradients"])
    assert result.converged.shape == (4,)


def test_final_states_carry_gradients_although_they_are_made_when_asked_for(tolerance):
    given = sources()
    result = result_of(given.cell, given.x, h0=given.h0)
    with torch.no_grad():
        final = result.final
    ours = torch.autograd.grad(final.square().sum(), given.all())
    truth = torch.autograd.grad(loop(given.cell, given.x, given.h0)[:, -1].square().sum(), given.all())
    torch.testing.assert_close(ours, truth, **tolerance["gradients"])


@pytest.mark.parametrize("wanted", ["x", "h0", "lift"])
def test_gradients_of_one_source_alone_are_those_of_the_loop(wanted, tolerance):
    given = sources()
    named = {"x": given.x, "h0": given.h0, "lift": given.cell.lift}
    for tensor in given.all():
        tensor.requires_grad_(tensor is named[wanted])
    ours, truth = (weighted_sum(states) for states in (newton_apply(given.cell, given.x, COMPILED, h0=given.h0), loop(given.cell, given.x, given.h0)))
    torch.testing.assert_close(torch.autograd.grad(ours, named[wanted]), torch.autograd.grad(truth, named[wanted]), **tolerance["gradients"])


def test_without_a_source_that_needs_gradients_the_states_need_none():
    cell, x, _ = sources()
    assert not newton_apply(cell.requires_grad_(False), x.detach(), COMPILED).requires_grad


def test_a_weight_edited_between_forward_and_backward_raises():
    cell, x, _ = sources()
    for weight in (cell.lift, cell.recurrent):
        states = newton_apply(cell, x, COMPILED)
        with torch.no_grad():
            weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            states.sum().backward()


def test_states_edited_before_backward_raise():
    cell, x, _ = sources()
    states = newton_apply(cell, x, COMPILED)
    total = states.sum()
    with torch.no_grad():
        states.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@pytest.mark.parametrize("first", ["x", "lift"])
@pytest.mark.parametrize("second", ["x", "lift", "recurrent", "weights of the sum"])
def test_a_second_derivative_is_refused_by_whatever_it_is_taken(first, second):
    cell, x, _ = sources()
    weights = torch.randn(2, 11, 3, dtype=torch.float64, requires_grad=True)
    named = {"x": x, "lift": cell.lift, "recurrent": cell.recurrent, "weights of the sum": weights}
    (gradient,) = torch.autograd.grad((newton_apply(cell, x, COMPILED) * weights).sum(), named[first], create_graph=True)
    with pytest.raises(DifferentiationError, match="derivatives='twice'"):
        torch.autograd.grad(gradient.sum(), named[second])


def test_a_graph_of_the_gradient_that_nobody_differentiates_is_fine(tolerance):
    cell, x, _ = sources()
    ours, truth = (
        torch.autograd.grad(weighted_sum(states), x, create_graph=graph)[0]
        for states, graph in ((newton_apply(cell, x, COMPILED), True), (loop(cell, x), False))
    )
    torch.testing.assert_close(ours.detach(), truth, **tolerance["gradients"])


def test_second_derivatives_that_are_asked_for_come_from_another_backend(engine):
    cell, x, _ = sources(length=2000, batch=1)
    auto = NewtonConfig(derivatives="twice")
    assert result_of(cell, x, auto).backend == "torch"
    assert engine.solves == 0


def test_auto_compiles_where_there_is_enough_to_do(engine):
    cell, x, _ = sources(length=2000, batch=1)
    with torch.no_grad():
        assert result_of(cell, x[:, :20], NewtonConfig()).backend == "torch"
        assert result_of(cell, x, NewtonConfig()).backend == "reference"


def test_checkpointing_solves_again_and_gives_the_same_gradients(engine):
    cell, x, h0 = given = sources()
    plain = torch.autograd.grad(weighted_sum(newton_apply(cell, x, COMPILED, h0=h0)), given.all())
    again = checkpoint(lambda x, h0: newton_apply(cell, x, COMPILED, h0=h0), x, h0, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(weighted_sum(again), given.all()), plain, rtol=0, atol=0)
    assert engine.solves == 3


def test_other_weights_by_functional_call_are_the_ones_that_count(tolerance):
    cell, x, _ = sources()
    layer, other = ParaRNN(cell, config=COMPILED), Gate(4, 3)
    weights = {f"layers.0.{name}": weight for name, weight in other.named_parameters()}
    states = torch.func.functional_call(layer, weights, (x,))
    torch.testing.assert_close(states, loop(other, x), **tolerance["states"])
    ours, truth = (torch.autograd.grad(weighted_sum(found), list(other.parameters())) for found in (states, loop(other, x)))
    torch.testing.assert_close(ours, truth, **tolerance["gradients"])


def test_a_replaced_parameter_is_the_one_that_counts(engine, tolerance):
    cell, x, _ = sources()
    newton_apply(cell, x, COMPILED)
    cell.lift = nn.Parameter(torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(newton_apply(cell, x, COMPILED), loop(cell, x), **tolerance["states"])


def test_a_plain_attribute_that_changes_is_seen(tolerance):
    cell, x = Tanh(4), torch.randn(2, 11, 4, dtype=torch.float64)
    newton_apply(cell, x, COMPILED)
    cell.input_weight = 0.25
    torch.testing.assert_close(newton_apply(cell, x, COMPILED), loop(cell, x), **tolerance["states"])


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


def test_a_recurrence_that_runs_into_infinity_says_so():
    class Square(ToyCell):
        def step(self, state, drive):
            return state * state + drive

    result = result_of(Square(3), torch.full((1, 30, 3), 10.0, dtype=torch.float64))
    assert result.status is Status.NOT_FINITE


class NoLook(TorchDispatchMode):
    """Raises where the host would wait for a number."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_to_copy"):
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


class Blind(ReferenceEngine):
    """An engine whose kernels are not looked into by a dispatch mode."""

    def solve(self, *args, **options):
        with torch.utils._python_dispatch._disable_current_modes():
            return super().solve(*args, **options)

    def backward(self, *args, **options):
        with torch.utils._python_dispatch._disable_current_modes():
            return super().backward(*args, **options)


def test_nothing_waits_for_the_device_before_the_record_is_asked_for(monkeypatch):
    engine = Blind()
    monkeypatch.setattr(backend, "engine", lambda: engine)
    monkeypatch.setattr(backend.solve, "engine", lambda: engine)
    monkeypatch.setattr(solving, "looks_at_once", lambda tensor: False)
    monkeypatch.setattr("pararnn.solver.asking.only_numbers", lambda: True)
    cell, x, h0 = sources()
    layer = ParaRNN(cell, config=COMPILED, return_hidden=True)
    layer(x, h0)
    with NoLook():
        output, (final,) = layer(x, h0)
        (output.sum() + final.sum()).backward()
        _, (result,) = layer.solve(x, h0)
        with pytest.raises(AssertionError, match="waits for the device"):
            result.explain()


def test_the_record_is_read_when_a_part_of_it_is_asked_for():
    cell, x, _ = sources()
    result = result_of(cell, x, NewtonConfig(backend="native", interval="parallel"))
    assert "status" not in vars(result)
    assert result.status is Status.CONVERGED
    assert (result.iterations, result.margin, result.walked, result.updates) == (3, 0.25, 0, ())
    assert result.converged.tolist() == [True, True]
    assert "3 iterations" in result.explain()
    assert "0.0" not in repr(result.status)
    assert result.raise_for_status() is result


def test_a_deferred_result_is_a_result_in_every_other_way():
    cell, x, _ = sources()
    with torch.no_grad():
        result = result_of(cell, x)
    for other in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result), dataclasses.replace(result, backend="native")):
        assert other.status is Status.WALKED
        assert other.margin is None
        torch.testing.assert_close(other.final, result.final, rtol=0, atol=0)
    assert not hasattr(result, "nothing")


def test_repaired_sequences_are_told_from_the_others(engine, monkeypatch):
    solve = engine.solve

    def repairing(*args, **options):
        states, record = solve(*args, **options)
        record[1, 0, 2] = 1
        return states, record

    monkeypatch.setattr(engine, "solve", repairing)
    cell, x, _ = sources()
    result = result_of(cell, x, NewtonConfig(backend="native", interval=4))
    assert result.status is Status.REPAIRED
    assert result.converged.tolist() == [True, False]
    assert result.walked == 11


@pytest.mark.parametrize("solver", ["auto", "newton", "sequential"])
def test_every_solver_of_the_layer_gives_the_states_of_the_loop(solver, engine, tolerance):
    cell, x, h0 = sources()
    layer = ParaRNN(cell, solver=solver, config=COMPILED)
    torch.testing.assert_close(layer(x, h0), loop(cell, x, h0), **tolerance["states"])
    assert engine.solves == (solver != "sequential")


@pytest.fixture
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_layer_is_one_graph_with_the_kernel_in_it(engine, tolerance):
    cell, x, h0 = sources()
    layer = ParaRNN(cell, return_hidden=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for length in (11, 7, 5):
        part = x.detach()[:, :length].requires_grad_()
        given = [part, h0, *cell.parameters()]
        (output, (final,)), truth = compiled(part, h0), loop(cell, part, h0)
        torch.testing.assert_close((output, final), (truth, truth[:, -1]), **tolerance["states"])
        ours, expected = (torch.autograd.grad(weighted_sum(states), given) for states in (output, truth))
        torch.testing.assert_close(ours, expected, **tolerance["gradients"])
    assert engine.solves == engine.backwards == 3


@pytest.mark.usefixtures("fresh_compiler")
def test_engines_may_give_gradients_as_rows_of_one_tensor_to_a_graph(engine, monkeypatch, tolerance):
    backward = engine.backward

    def rows_of_one(*arguments, **options):
        found = backward(*arguments, **options)
        alike = [index for index, one in enumerate(found) if one is not None and one.ndim == 1]
        assert len(alike) > 1
        for index, row in zip(alike, torch.stack([found[index] for index in alike]), strict=True):
            found[index] = row
        return found

    monkeypatch.setattr(engine, "backward", rows_of_one)
    cell, x, _ = sources()
    layer = ParaRNN(cell, config=COMPILED)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found, expected = (torch.autograd.grad(weighted_sum(states), list(cell.parameters())) for states in (compiled(x), loop(cell, x)))
    torch.testing.assert_close(found, expected, **tolerance["gradients"])


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_layer_sees_an_attribute_of_the_step_that_changes(engine, tolerance):
    cell, x = Tanh(4), torch.randn(2, 11, 4, dtype=torch.float64)
    compiled = torch.compile(ParaRNN(cell), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), loop(cell, x), **tolerance["states"])
    cell.input_weight = 0.25
    torch.testing.assert_close(compiled(x), loop(cell, x), **tolerance["states"])
    assert engine.solves == 2


@pytest.mark.usefixtures("fresh_compiler")
def test_a_step_without_a_kernel_is_left_out_of_the_graph(engine, tolerance):
    cell, x = DenseRNN(3, 4), torch.randn(2, 30, 3, dtype=torch.float64)
    compiled = torch.compile(ParaRNN(cell), backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), loop(cell, x), **tolerance["states"])
    assert engine.solves == 0


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
@pytest.mark.usefixtures("fresh_compiler")
def test_an_exported_layer_holds_the_kernel(engine, strict, tolerance):
    cell, x, _ = sources()
    exported = torch.export.export(ParaRNN(cell), (x.detach(),), strict=strict)
    assert sum("solve_compiled" in str(node.target) for node in exported.graph.nodes) == 1
    torch.testing.assert_close(exported.module()(x.detach()), loop(cell, x), **tolerance["states"])
    assert engine.solves == 1


def test_a_graph_from_another_process_says_what_is_missing():
    with pytest.raises(CompilationError, match="solve once with the layer"):
        ops.program_at("of another process")


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)], ids=["both", "operands", "initial"])
def test_the_operators_are_what_they_claim_to_be(needs):
    cell, x, h0 = sources()
    problem = cell_problem(cell, x, COMPILED, h0=h0)
    compiled = catalogue.compiled(problem)
    operands = [operand.detach().requires_grad_(needs[0]) for operand in compiled.operands(problem)]
    initial = h0.detach().requires_grad_(needs[1])
    asked = "native", ops.register(compiled.program), operands, initial, None, 0, "4", 1e-12, 1e-11, 0
    torch.library.opcheck(ops.solve_op, asked)


class Opaque(ToyCell):
    """Its step reads a number of which the compiler cannot tell whether it changed."""

    def __init__(self, state_size):
        super().__init__(state_size)
        self.gain = Decimal("0.5")

    def step(self, state, drive):
        return torch.tanh(float(self.gain) * state + drive)


def test_a_step_that_cannot_be_told_from_a_changed_one_is_traced_anew(engine, tolerance):
    cell, x = Opaque(3), torch.randn(1, 1100, 3, dtype=torch.float64)
    for gain in ("0.5", "0.25"):
        cell.gain = Decimal(gain)
        for config in (COMPILED, NewtonConfig()):
            torch.testing.assert_close(newton_apply(cell, x, config), loop(cell, x), **tolerance["states"])
    assert engine.solves == 4


def test_a_cell_and_its_states_are_not_kept_alive():
    cell, x, _ = sources()
    result = result_of(cell, x)
    watched = weakref.ref(cell), weakref.ref(result.states)
    del cell, result
    gc.collect()
    assert [reference() for reference in watched] == [None, None]
