"""Cells with several numbers a channel in layers: graphs of `torch.compile`, operators, solves that are recognised, decoders."""

import pytest
import torch
from toy_cells import loop, weighted_sum
from wide_cells import CELLS, Wide, c_engine, gru, with_bias

from pararnn import NewtonConfig, ParaRNN
from pararnn.compiler import catalogue, ops
from pararnn.solver.api import cell_problem


@pytest.mark.parametrize("name", CELLS)
def test_a_graph_of_torch_compile_holds_the_solve(engine, name):
    torch.manual_seed(0)
    body, parts = CELLS[name]
    layer = ParaRNN(Wide(body, 3, parts), config=NewtonConfig(backend="native"))
    x = torch.randn(2, 11, 3 * parts, dtype=torch.float64, requires_grad=True)
    given = [x, *layer.parameters()]
    output = torch.compile(layer, backend="aot_eager", fullgraph=True)(x)
    truth = loop(layer.layers[0], x, layer.layers[0].initial_state(2))
    torch.testing.assert_close(output, truth, rtol=1e-9, atol=1e-9)
    ours, wanted = (torch.autograd.grad(weighted_sum(states), given, allow_unused=True) for states in (output, truth))
    for mine, theirs in zip(ours, wanted, strict=True):
        torch.testing.assert_close(torch.zeros(()) if mine is None else mine, torch.zeros(()) if theirs is None else theirs, rtol=1e-8, atol=1e-8)
    assert (engine.solves, engine.backwards) == (1, 1)


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)], ids=["all", "tensors", "initial"])
def test_the_operators_are_what_they_claim_to_be(engine, needs):
    torch.manual_seed(0)
    cell, x, h0 = Wide(gru, 3, 3), torch.randn(2, 7, 9, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    found = catalogue.compiled(problem := cell_problem(cell, x, NewtonConfig(), h0=h0))
    tensors = [tensor.detach().requires_grad_(needs[0]) for tensor in found.tensors(problem)]
    initial = h0.requires_grad_(needs[1])
    asked = "native", ops.register(found.program), tensors, initial, None, 0, "4", 1e-12, 1e-11, 0, ""
    torch.library.opcheck(ops.solve_op, asked)
    assert engine.solves


def test_a_layer_that_has_solved_before_solves_again(engine):
    torch.manual_seed(0)
    layer = ParaRNN(Wide(with_bias, 3), config=NewtonConfig(backend="native"))
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(2, 11, 6, dtype=torch.float64, requires_grad=True)
        given = [x, *layer.parameters()]
        output, truth = layer(x), loop(layer.layers[0], x, layer.layers[0].initial_state(2))
        torch.testing.assert_close(output, truth, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(*(torch.autograd.grad(weighted_sum(states), given) for states in (output, truth)), rtol=1e-8, atol=1e-8)
    assert (engine.solves, engine.backwards) == (3, 3)


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_a_decoder_steps_by_the_kernel(request, backend):
    if backend == "reference":
        request.getfixturevalue("engine")
    else:
        c_engine()
    torch.manual_seed(0)
    layer, x = ParaRNN(Wide(gru, 5, 3), config=NewtonConfig(backend="native")), torch.randn(2, 6, 15, dtype=torch.float64)
    decoder = layer.decoder(2)
    outputs = torch.stack([decoder.step(sample).clone() for sample in x.unbind(1)], 1)
    torch.testing.assert_close(outputs, loop(layer.layers[0], x).detach(), rtol=1e-9, atol=1e-9)
    assert not decoder.explain().count("torch")
