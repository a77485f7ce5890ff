"""Graphs of `torch.compile` and `torch.export` hold the solve as an operator."""

import pytest
import torch
from solved_gates import COMPILED, sources
from toy_cells import DenseRNN, Tanh, loop, weighted_sum

from pararnn import ParaRNN
from pararnn.compiler import catalogue, ops
from pararnn.errors import CompilationError
from pararnn.solver.api import cell_problem


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
    asked = "native", ops.register(compiled.program), operands, initial, None, 0, "4", 1e-12, 1e-11, 0, ""
    torch.library.opcheck(ops.solve_op, asked)
