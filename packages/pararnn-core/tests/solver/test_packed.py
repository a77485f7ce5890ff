"""Sequences packed into one row are solved as each would be alone, and nothing passes from one to the next."""

import pytest
import torch
from toy_cells import ALL, DiagonalGRU, make_cell, packed_loop, weighted_sum

from pararnn import NewtonConfig, Status, newton_apply, sequential_apply
from pararnn.solver.api import cell_problem, run

LAYOUTS = {
    "one": [0, 60],
    "two": [0, 25, 60],
    "short and long": [0, 1, 3, 50, 60],
    "empty at the front": [0, 0, 30, 60],
    "empty in the middle": [0, 30, 30, 30, 60],
    "empty at the end": [0, 45, 60, 60],
    "single steps": list(range(61)),
}
INTERVALS = (1, 3, 16, "auto", "parallel", 60)


def inputs(length=60, seed=0):
    return torch.randn(1, length, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def starts(cell, offsets):
    return (0.3 * torch.randn(len(offsets) - 1, cell.state_size, dtype=cell.state_dtype)).requires_grad_()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("offsets", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("interval", INTERVALS)
def test_states_and_gradients_equal_the_loop_over_each_sequence(interval, offsets, tolerance):
    cell, x = DiagonalGRU(3, 4), inputs().requires_grad_()
    start = starts(cell, offsets)
    sources = (x, start, *cell.parameters())
    states = newton_apply(cell, x, NewtonConfig(interval=interval), h0=start, cu_seqlens=torch.tensor(offsets))
    expected = packed_loop(cell, x, offsets, start)
    torch.testing.assert_close(states, expected, **tolerance["states"])
    ours, truth = (torch.autograd.grad(weighted_sum(out), sources) for out in (states, expected))
    torch.testing.assert_close(ours, truth, **tolerance["gradients"])


@pytest.mark.parametrize("interval", [1, 4, "auto"])
@pytest.mark.parametrize("name", ALL)
def test_every_cell_can_be_packed(name, interval, tolerance):
    cell, x, offsets = make_cell(name), inputs().requires_grad_(), [0, 7, 7, 40, 60]
    start = starts(cell, offsets)
    sources = (x, start, *cell.parameters())
    states = newton_apply(cell, x, NewtonConfig(interval=interval), h0=start, cu_seqlens=torch.tensor(offsets, dtype=torch.int32))
    expected = packed_loop(cell, x, offsets, start)
    torch.testing.assert_close(states, expected, **tolerance["states"])
    ours, truth = (torch.autograd.grad(weighted_sum(out), sources) for out in (states, expected))
    torch.testing.assert_close(ours, truth, **tolerance["gradients"])


@pytest.mark.parametrize("offsets", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_the_walk_of_packed_sequences_is_the_loop_over_each(offsets, tolerance):
    cell, x = DiagonalGRU(3, 4), inputs()
    start = starts(cell, offsets)
    states = sequential_apply(cell, x, start, cu_seqlens=torch.tensor(offsets))
    torch.testing.assert_close(states, packed_loop(cell, x, offsets, start), **tolerance["states"])


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("name", ["diagonal GRU", "slot LSTM", "complex pole"])
@pytest.mark.parametrize("scale", [1, 100], ids="times {}".format)
def test_another_document_in_the_pack_changes_no_bit_of_this_one(scale, name, interval):
    cell, x, offsets = make_cell(name), inputs(), torch.tensor([0, 25, 60])
    for other in (scale * inputs(seed=1), scale * inputs(seed=2)):
        changed = torch.cat((other[:, :25], x[:, 25:]), dim=1)
        with torch.no_grad():
            first, second = (newton_apply(cell, data, NewtonConfig(interval=interval), cu_seqlens=offsets) for data in (x, changed))
        assert torch.equal(first[:, 25:], second[:, 25:])


@pytest.mark.parametrize("interval", [1, 4, "auto"])
def test_gradients_do_not_pass_between_documents(interval):
    cell, x, offsets = DiagonalGRU(3, 4), inputs().requires_grad_(), torch.tensor([0, 25, 60])
    states = newton_apply(cell, x, NewtonConfig(interval=interval), cu_seqlens=offsets)
    (gradient,) = torch.autograd.grad(states[:, 25:].sum(), x)
    assert not gradient[:, :25].any()
    assert gradient[:, 25:].any()


def test_a_nan_in_one_document_is_reported_with_its_place():
    from pararnn import InputError

    cell, x = DiagonalGRU(3, 4), inputs()
    x[0, 7, 1] = float("nan")
    with pytest.raises(InputError, match="step 7"):
        newton_apply(cell, x, NewtonConfig(interval=4), cu_seqlens=torch.tensor([0, 25, 60]))


def test_the_result_speaks_of_each_sequence():
    cell, x, offsets = DiagonalGRU(3, 4), inputs(), [0, 20, 20, 60]
    start = starts(cell, offsets)
    config = NewtonConfig(interval=4)
    result = run(cell_problem(cell, x, config, h0=start, cu_seqlens=torch.tensor(offsets)), config)
    assert result.status is Status.CONVERGED
    assert result.converged.tolist() == [True, True, True]
    assert torch.equal(result.final, torch.stack((result.states[0, 19], start[1], result.states[0, 59])))


def test_the_final_state_of_each_sequence_has_its_gradient(tolerance):
    cell, x, offsets = DiagonalGRU(3, 4), inputs().requires_grad_(), [0, 20, 20, 60]
    start = starts(cell, offsets)
    config = NewtonConfig(interval=4)
    final = run(cell_problem(cell, x, config, h0=start, cu_seqlens=torch.tensor(offsets)), config).final
    states = packed_loop(cell, x, offsets, start)
    expected = torch.stack((states[0, 19], start[1], states[0, 59]))
    ours, truth = (torch.autograd.grad(weighted_sum(out), (x, start, cell.U)) for out in (final, expected))
    torch.testing.assert_close(ours, truth, **tolerance["gradients"])


@pytest.mark.parametrize("offsets", [[0], [0, 0], [0, 0, 0]], ids=str)
@pytest.mark.parametrize("interval", [1, 4, "auto"])
def test_a_pack_without_a_single_step_is_empty(interval, offsets):
    cell = DiagonalGRU(3, 4)
    start = starts(cell, offsets)
    config = NewtonConfig(interval=interval)
    result = run(cell_problem(cell, inputs(0), config, h0=start, cu_seqlens=torch.tensor(offsets)), config)
    assert result.states.shape == (1, 0, 4)
    assert torch.equal(result.final, start)
