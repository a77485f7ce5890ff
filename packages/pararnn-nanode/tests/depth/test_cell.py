"""The equation as a cell of `ParaRNN`."""

import pytest
import torch

import pararnn
import pararnn_nanode
from pararnn import NewtonConfig, ParaRNN
from pararnn.conformance import parametrize_with_checks, verify_cell
from pararnn.errors import ConfigError, DTypeError, ShapeError
from pararnn_nanode import NANODE, plugin
from pararnn_nanode.depth.cell import NANODECell
from pararnn_nanode.depth.examples import nanode
from pararnn_nanode.fields.callable import CallableField
from pararnn_nanode.fields.diagonal import DiagonalField
from pararnn_nanode.integrate import fixed
from pararnn_nanode.integrate.schedule import schedule
from pararnn_nanode.paths.bucket import BucketPath
from pararnn_nanode.paths.constant import ConstantPath
from pararnn_nanode.paths.trigonometric import TrigPath


@parametrize_with_checks(*plugin.pararnn_register_cells(), *plugin.pararnn_register_backends())
def test_conformance(check):
    check()


@pytest.mark.parametrize("method", ["euler", "rk4"])
@pytest.mark.parametrize("parallel", ["newton", "picard"])
def test_other_methods_and_picard_pass_as_well(dense, method, parallel):
    cell = NANODECell(dense(3, scale=0.5), steps=12, method=method, parallel=parallel)
    verify_cell(cell, cell.steps_of(3, 9)).raise_for_failures()


def test_a_diagonal_field_passes_as_well():
    cell = NANODECell(DiagonalField(3, TrigPath(3, 1, gain=0.5)), h=0.1)
    verify_cell(cell, cell.steps_of(2, 9)).raise_for_failures()


@pytest.mark.parametrize("solver", ["auto", "newton", "sequential"])
@pytest.mark.parametrize("method", ["euler", "midpoint", "heun", "rk4"])
def test_its_states_are_those_of_the_walk(dense, method, solver):
    field, x = dense(), torch.randn(2, 5)
    cell = NANODECell(field, steps=100, span=(0.5, 1.5), method=method)
    states = ParaRNN(cell, solver=solver)(cell.steps_of(2, 100), x)
    truth = fixed.integrate(field, x, schedule(1.5, steps=100, span=(0.5, 1.5), output="path"), method=method).x[1:]
    torch.testing.assert_close(states, truth.transpose(0, 1), rtol=1e-9, atol=1e-9)


def test_pieces_of_weights_are_found_in_single_precision():
    field = DiagonalField(3, BucketPath(3, 10, gain=1.0)).float()
    cell = NANODECell(field, steps=10)
    (weights,) = cell.drive(cell.steps_of(1, 10))
    torch.testing.assert_close(weights[0, :, 0], field.path.grid(torch.arange(10) / 10 + 0.05))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_weights_in_half_precision_are_those_of_every_step(dense, dtype):
    field = DiagonalField(3, BucketPath(3, 5000, gain=1.0, dtype=dtype), input=ConstantPath((3, 2), dtype=dtype))
    cell = NANODECell(field, steps=5000)
    u = torch.zeros(1, 5000, 2, dtype=dtype)
    weights, _ = cell.drive(cell.steps_of(1, 5000, u))
    assert torch.equal(weights[0, :, 0], field.path.coefficients)
    states = ParaRNN(cell)(cell.steps_of(1, 5000, u), torch.ones(1, 3, dtype=dtype))
    assert states.dtype is dtype


@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 256), (torch.float16, 2048)], ids=str)
def test_numbers_of_steps_in_half_precision_are_refused(dense, dtype, most):
    cell = NANODECell(dense().to(dtype), steps=1000)
    with pytest.raises(DTypeError, match=rf"only up to {most}, .* give the inputs in float32"):
        ParaRNN(cell)(cell.steps_of(1, 1000).to(dtype))


@pytest.mark.parametrize(
    ("inputs", "words"), [(None, r"\(batch, time, 1\): first the number of the step; got"), (2, "step, then the 2 inputs u; got")]
)
def test_inputs_without_the_number_of_the_step_are_refused(dense, inputs, words):
    cell = NANODECell(dense(input=None if inputs is None else ConstantPath((5, inputs))), steps=10)
    with pytest.raises(ShapeError, match=rf"{words} \(2, 10, 4\)\. cell\.steps_of"):
        ParaRNN(cell)(torch.randn(2, 10, 4))


def test_the_name_of_the_cell_means_one_class():
    assert pararnn.NANODECell is pararnn_nanode.NANODECell
    with pytest.raises(AttributeError, match="close: 'NANODECell'"):
        _ = pararnn.NANODE


def test_long_sequences_are_solved_by_the_backend_of_this_package():
    cell, x = nanode(2, 100, seed=0)
    _, (result,) = ParaRNN(cell, solver="newton").solve(x)
    assert result.backend == "blocks"
    assert result.iterations > 1
    assert result.walked == 0
    assert "one Jacobian for each block" in result.explain()


@pytest.mark.parametrize("config", [NewtonConfig(interval=4), NewtonConfig(interval="parallel", derivatives="twice")], ids=["interval", "twice"])
def test_what_it_does_not_serve_goes_to_the_general_solver(config):
    cell, x = nanode(2, 100, seed=0)
    _, (result,) = ParaRNN(cell, config=config).solve(x)
    assert result.backend == "torch"


@pytest.mark.parametrize(
    "options",
    [{}, {"steps": 3, "h": 0.1}, {"steps": 0}, {"h": 0.0}, {"steps": 3, "method": "alf"}, {"steps": 3, "parallel": "windowed"}],
    ids=str,
)
def test_options_that_cannot_work_are_refused(dense, options):
    with pytest.raises(ConfigError):
        NANODECell(dense(), **options)


def test_a_function_needs_its_size_and_picard():
    field = CallableField(lambda t, x: torch.sin(x) + t)
    with pytest.raises(ConfigError, match="dim="):
        NANODECell(field, steps=10, parallel="picard")
    cell = NANODECell(field, steps=10, parallel="picard", dim=3)
    x = torch.randn(2, 3)
    truth = fixed.integrate(field, x, schedule(1.0, steps=10, span=(0.0, 1.0))).x[-1]
    torch.testing.assert_close(ParaRNN(cell)(cell.steps_of(2, 10), x)[:, -1], truth)


def test_a_function_of_time_is_a_cell_in_single_precision():
    cell = NANODECell(CallableField(lambda t, x: torch.tanh(x) * torch.cos(t)), steps=100, parallel="picard", dim=3)
    x, start = cell.steps_of(2, 100).float(), torch.ones(2, 3, dtype=torch.float32)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        states = ParaRNN(cell)(x, start)
        expected = NANODE(cell.field, 100)(start)
    finally:
        torch.set_default_dtype(default)
    torch.testing.assert_close(states[:, -1], expected, rtol=1e-5, atol=1e-5)
