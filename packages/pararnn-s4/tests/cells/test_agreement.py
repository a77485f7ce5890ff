"""Convolution, chunked scan, cell and loop are four ways to the same outputs, states and gradients."""

import copy

import pytest
import torch
from cell_models import cell_around, flat, inputs_and_state, loop, make_ssm

from pararnn import NewtonConfig, ParaRNN, ShapeError, verify_agreement
from pararnn_s4.cells.outputs import scan_outputs
from pararnn_s4.planner import plan

LENGTHS = [1, 2, 7, 8, 65, 130]
F64 = {"rtol": 1e-10, "atol": 1e-10}
F32 = {"rtol": 2e-5, "atol": 2e-5}


def causal(kernel, u):
    """The convolution written out."""
    length = u.shape[-1]
    lags = torch.arange(length).unsqueeze(-1) - torch.arange(length)
    toeplitz = torch.where(lags >= 0, kernel[..., lags.clamp(min=0)], 0.0)
    return torch.einsum("chts,bhs->bcht", toeplitz, u)


def by_convolution(ssm, skip, u, state):
    y = causal(ssm(u.shape[-1]), u) + ssm.response(state, u.shape[-1]) + (skip.unsqueeze(-1) * u.unsqueeze(1))
    return y, ssm.advance(u, state)


def by_cell(cell, u, state):
    rnn = ParaRNN(cell, return_hidden=True)
    y, (after,) = rnn(u.mT, cell.pack(state))
    return y, cell.unpack(after)


def gradients(outputs, sources):
    y, after = outputs
    weight = torch.arange(y.numel()).cos().reshape(y.shape).to(y.dtype)
    loss = (y * weight).sum() + (after.abs() ** 2).sum()
    return torch.autograd.grad(loss, sources)


@pytest.mark.parametrize("length", LENGTHS, ids="T{}".format)
@pytest.mark.parametrize("batch", [1, 3], ids="B{}".format)
def test_four_ways_give_equal_outputs_and_states(form, batch, length):
    cell = cell_around(make_ssm(form))
    u, state = inputs_and_state(cell.ssm, batch, length)
    y, after = loop(cell.ssm, cell.D, u, state)
    torch.testing.assert_close(by_convolution(cell.ssm, cell.D, u, state), (y, after), **F64)
    torch.testing.assert_close(scan_outputs(cell.ssm, u, state, D=cell.D), (y, after), **F64)
    torch.testing.assert_close(by_cell(cell, u, state), (flat(y), after), **F64)


@pytest.mark.parametrize("length", [1, 7, 65], ids="T{}".format)
def test_four_ways_give_equal_gradients(form, length):
    cell = cell_around(make_ssm(form))
    u, state = (tensor.requires_grad_() for tensor in inputs_and_state(cell.ssm, 2, length))
    sources = [u, state, cell.D, *cell.ssm.parameters()]
    y, after = loop(cell.ssm, cell.D, u, state)
    expected = gradients((flat(y), after), sources)
    convolved, carried = by_convolution(cell.ssm, cell.D, u, state)
    scanned, reached = scan_outputs(cell.ssm, u, state, D=cell.D)
    for found in ((flat(convolved), carried), (flat(scanned), reached), by_cell(cell, u, state)):
        torch.testing.assert_close(gradients(found, sources), expected, rtol=1e-10, atol=1e-10)


def test_single_precision_stays_near_double(form):
    ssm = make_ssm(form, torch.float32, dt_min=0.001)
    cell = cell_around(ssm)
    u, state = inputs_and_state(ssm, 2, 513)
    double = copy.deepcopy(ssm).double()
    expected, after = scan_outputs(double, u.double(), state.to(double.state_dtype), D=cell.D.double())
    found, reached = scan_outputs(ssm, u, state, D=cell.D)
    torch.testing.assert_close(found.double(), expected, **F32)
    torch.testing.assert_close(reached.to(after.dtype), after, **F32)
    torch.testing.assert_close(by_cell(cell, u, state)[0].double(), flat(expected), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", ["zoh", "legs"])
def test_gradients_in_single_precision_stay_near_double(name):
    ssm = make_ssm(name, torch.float32, dt_min=0.001)
    double = copy.deepcopy(ssm).double()
    u, state = inputs_and_state(ssm, 2, 513)
    found = gradients(scan_outputs(ssm, u, state), list(ssm.parameters()))
    expected = gradients(scan_outputs(double, u.double(), state.to(double.state_dtype)), list(double.parameters()))
    for ours, truth in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), truth, rtol=1e-3, atol=1e-4 * float(truth.abs().max()))


def test_another_rate_is_another_model(form):
    ssm = make_ssm(form)
    cell = cell_around(ssm, rate=2.5)
    u, state = inputs_and_state(ssm, 2, 11)
    y, after = loop(ssm, cell.D, u, state, rate=2.5)
    torch.testing.assert_close(scan_outputs(ssm, u, state, D=cell.D, rate=2.5), (y, after), **F64)
    torch.testing.assert_close(by_cell(cell, u, state), (flat(y), after), **F64)


def test_states_of_rows_of_several_lengths_are_their_own(form):
    ssm = make_ssm(form)
    u, state = inputs_and_state(ssm, 3, 20)
    lengths = torch.tensor([0, 7, 20])
    _, after = scan_outputs(ssm, u, state, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        one = slice(row, row + 1)
        alone = scan_outputs(ssm, u[one, :, :length], state[one])[1] if length else state[one]
        torch.testing.assert_close(after[one], alone, **F64)


def test_pieces_give_what_the_whole_gives(form):
    ssm = make_ssm(form)
    u, state = inputs_and_state(ssm, 2, 100)
    whole, end = scan_outputs(ssm, u, state)
    first, middle = scan_outputs(ssm, u[..., :37], state)
    second, last = scan_outputs(ssm, u[..., 37:], middle)
    torch.testing.assert_close(torch.cat((first, second), -1), whole, **F64)
    torch.testing.assert_close(last, end, **F64)


@pytest.mark.parametrize("shape", [(2, 3, 0), (0, 3, 5)], ids=str)
def test_nothing_in_is_nothing_out(form, shape):
    ssm = make_ssm(form)
    u = torch.zeros(shape, dtype=ssm.dtype)
    y, after = scan_outputs(ssm, u)
    assert y.shape == (shape[0], ssm.channels, 3, shape[2])
    torch.testing.assert_close(after, ssm.initial_state(shape[0]))


def test_cells_agree_with_the_walk_for_any_start_and_packing(form):
    cell = cell_around(make_ssm(form))
    x = torch.randn(1, 40, 3, dtype=torch.float64)
    h0 = torch.randn(4, cell.state_size, dtype=cell.initial_state(1).dtype)
    assert verify_agreement(cell, x, h0=h0, cu_seqlens=torch.tensor([0, 5, 5, 39, 40])).ok


def test_a_long_sequence_of_stiff_states_stays_finite_and_right():
    ssm = make_ssm("legs", d_state=32, dt_min=0.001)
    u, state = inputs_and_state(ssm, 1, 4096)
    y, _ = scan_outputs(ssm, u, state)
    torch.testing.assert_close(y, causal(ssm(4096), u) + ssm.response(state, 4096), **F64)


def test_the_general_solver_and_the_powers_agree():
    cell = cell_around(make_ssm("legs"))
    x = torch.randn(2, 30, 3, dtype=torch.float64)
    _, (special,) = ParaRNN(cell).solve(x)
    _, (general,) = ParaRNN(cell, config=NewtonConfig(backend="torch")).solve(x)
    assert (special.backend, general.backend) == ("powers", "torch")
    torch.testing.assert_close(special.states, general.states, **F64)


def test_inputs_and_states_of_other_shapes_are_refused():
    ssm = make_ssm("zoh")
    with pytest.raises(ShapeError, match=r"inputs must be \(batch, 3, length\), got \(2, 4, 5\)"):
        scan_outputs(ssm, torch.zeros(2, 4, 5))
    with pytest.raises(ShapeError, match=r"the state must be \(2, 3, 4\), got \(1, 3, 4\)"):
        scan_outputs(ssm, torch.zeros(2, 3, 5), ssm.initial_state(1))


@pytest.mark.parametrize("name", ["zoh", "legs"])
def test_one_graph_holds_plan_and_scan(name):
    ssm = make_ssm(name)
    case = inputs_and_state(ssm, 2, 40)

    def planned(u, state):
        method = plan(batch=u.shape[0], length=u.shape[-1], d_model=3, state=8, device=u.device).method
        y, after = scan_outputs(ssm, u, state)
        return y, after, method

    torch.compiler.reset()
    y, after, method = torch.compile(planned, fullgraph=True, backend="eager")(*case)
    expected, reached, chosen = planned(*case)
    torch.testing.assert_close((y, after), (expected, reached))
    assert method == chosen
