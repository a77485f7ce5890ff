"""States and gradients of compiled steps, against loops under autograd in double precision."""

import pytest
import torch

from pararnn.compiler.native import engine as engine_module
from pararnn.compiler.native import gradients as gradients_module

CLOSE = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-10},
    torch.float32: {"rtol": 2e-4, "atol": 2e-5},
    torch.float16: {"rtol": 2e-2, "atol": 2e-2},
    torch.bfloat16: {"rtol": 1e-1, "atol": 1e-1},
}
SIZES = [(1, 1, 1), (1, 130, 1), (2, 37, 7), (3, 20, 16), (5, 33, 4), (1, 9, 70), (9, 12, 70), (2, 5, 300), (2, 600, 33), (2, 50, 64)]
sizes = pytest.mark.parametrize("size", SIZES, ids="{0[0]}x{0[1]}x{0[2]}".format)


def hold(found, expected, dtype):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, **CLOSE[dtype])


@pytest.mark.parametrize("interval", ["walk", 1, 5, 16, "auto", "parallel"])
@pytest.mark.parametrize("cell", ["cfc", "gated", "linear", "crooked", "timed"])
@sizes
def test_states_are_those_of_the_loop(subject, cell, size, interval):
    one = subject(cell, *size)
    states, record = one.solve(interval)
    torch.testing.assert_close(states, one.loop(), **CLOSE[torch.float64])
    assert record.shape[0] == size[0]


@pytest.mark.parametrize("cell", ["cfc", "gated", "linear", "crooked", "timed"])
@sizes
def test_gradients_are_those_of_autograd(subject, cell, size):
    one = subject(cell, *size)
    grad = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    hold(one.backward(grad, one.solve()[0]), one.loop(grad), torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("interval", ["walk", 7])
@pytest.mark.parametrize("cell", ["cfc", "gated"])
def test_other_precisions_come_as_close_as_their_rounding_allows(subject, cell, interval, dtype):
    one = subject(cell, 3, 50, 20, dtype=dtype)
    states, _ = one.solve(interval)
    assert states.dtype is dtype
    torch.testing.assert_close(states.double(), one.loop(), **CLOSE[dtype])
    grad = torch.randn(states.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = one.backward(grad, states)
    assert [gradient.dtype for gradient in found] == [dtype] * 5
    for gradient, expected in zip(found, one.loop(grad), strict=True):
        torch.testing.assert_close(gradient.double() / expected.abs().max(), expected / expected.abs().max(), **CLOSE[dtype])


def test_half_precision_operands_drive_states_in_single_precision(subject):
    one = subject("cfc", 2, 40, 8, dtype=torch.float32)
    exact = one.solve()[0]
    one.operands[0] = one.operands[0].bfloat16()
    rounded = one.solve()[0]
    one.operands[0] = one.operands[0].float()
    torch.testing.assert_close(rounded, one.solve()[0], rtol=0, atol=0)
    assert not torch.equal(rounded, exact)


@pytest.mark.parametrize("interval", ["walk", 4])
@pytest.mark.parametrize("lengths", [[5, 0, 17, 1], [0, 0, 3], [40], [1, 1, 1, 1, 1, 1, 1, 30]], ids=str)
@pytest.mark.parametrize("state", [1, 6, 64, 70])
def test_packed_sequences_do_not_see_each_other(subject, state, lengths, interval):
    one = subject("cfc", 1, 0, state, lengths=lengths)
    states, _ = one.solve(interval)
    torch.testing.assert_close(states, one.loop(), **CLOSE[torch.float64])
    grad = torch.randn(states.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    hold(one.backward(grad, states), one.loop(grad), torch.float64)


@pytest.mark.parametrize("size", [(0, 5, 3), (2, 0, 3)], ids=["no rows", "no steps"])
def test_nothing_to_solve_gives_nothing_and_gradients_of_zero(subject, size):
    one = subject("cfc", *size)
    states, record = one.solve()
    assert states.shape == size
    assert not record.any()
    for gradient, operand in zip(one.backward(states, states), (*one.operands, one.initial), strict=True):
        torch.testing.assert_close(gradient, torch.zeros_like(operand))


@pytest.mark.parametrize("state", [5, 64])
def test_strides_of_any_kind_are_read_and_written(subject, state):
    one = subject("cfc", 3, 21, state)
    plain = one.solve()[0]
    grad = torch.ones(1, 1, 1, dtype=torch.float64).expand(3, 21, state)
    expected = one.backward(grad.contiguous(), plain)
    rate, candidate, elapsed, recurrent = one.operands
    one.operands = [
        torch.stack((rate, rate), -1)[..., 1],
        candidate.transpose(0, 2).contiguous().transpose(0, 2),
        elapsed.expand(3, 21, 2)[..., 1:],
        torch.stack((recurrent, recurrent), 1)[:, 0],
    ]
    one.initial = one.initial.t().contiguous().t()
    assert torch.equal(one.solve()[0], plain)
    for found, other in zip(one.backward(grad, plain), expected, strict=True):
        assert torch.equal(found, other)


@pytest.mark.parametrize("state", [5, 64])
def test_an_operand_that_is_the_same_everywhere_is_read_with_strides_of_zero(subject, state):
    one = subject("cfc", 3, 21, state)
    one.operands[0] = one.operands[0][:1, :1, :1].expand(3, 21, state)
    states = one.solve()[0]
    torch.testing.assert_close(states, one.loop(), **CLOSE[torch.float64])
    hold(one.backward(states, states), one.loop(states), torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("state", [5, 64, 70])
def test_what_is_one_number_a_step_has_the_bits_of_what_is_one_a_channel(subject, state, dtype):
    one, other = subject("timed", 3, 50, state, dtype=dtype), subject("spread", 3, 50, state, dtype=dtype)
    candidate, elapsed = one.operands
    other.operands, other.initial = [candidate, elapsed.expand(3, 50, state)], one.initial
    states = one.solve()[0]
    assert torch.equal(states, other.solve()[0])
    for found, expected in zip(one.backward(states, states)[::2], other.backward(states, states)[::2], strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("interval", ["walk", 6])
@pytest.mark.parametrize("size", [(3, 50, 7), (2, 33, 64), (2, 20, 70)], ids=str)
def test_results_are_written_in_full(subject, monkeypatch, size, interval):
    def poisoned(shape, dtype):
        return torch.full(shape, torch.nan, dtype=dtype)

    one = subject("cfc", *size)
    expected = one.solve(interval)[0]
    gradients = one.backward(expected, expected)
    monkeypatch.setattr(engine_module, "room", poisoned)
    monkeypatch.setattr(gradients_module, "room", poisoned)
    assert torch.equal(one.solve(interval)[0], expected)
    for found, other in zip(one.backward(expected, expected), gradients, strict=True):
        assert torch.equal(found, other)


@pytest.mark.parametrize("interval", ["walk", 16])
@pytest.mark.parametrize("size", [(1, 3000, 70), (40, 500, 5), (8, 300, 64)], ids=str)
def test_results_have_the_same_bits_on_any_number_of_threads(subject, size, interval):
    one = subject("cfc", *size, dtype=torch.float32)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 5, 1):
            torch.set_num_threads(count)
            states, record = one.solve(interval)
            found.append([states, record, *one.backward(states, states)])
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(found[0], other, strict=True))


@pytest.mark.parametrize("interval", [1, 8, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_chaotic_cell_gives_the_bits_of_the_walk(subject, dtype, interval):
    one = subject("logistic", 2, 700, 3, dtype=dtype)
    states, record = one.solve(interval)
    assert torch.equal(states, one.solve("walk")[0])
    assert record[..., 2].any()


@pytest.mark.parametrize("interval", [4, 16])
def test_a_settled_solve_says_how_many_sweeps_it_took_and_how_near_it_came(subject, interval):
    _, record = subject("cfc", 2, 500, 3).solve(interval)
    sweeps, margin, repaired = record.unbind(-1)
    assert ((sweeps >= 1) & (sweeps < 12)).all()
    assert (margin <= 1).all()
    assert not repaired.any()


def test_too_few_sweeps_are_repaired_by_the_walk(subject):
    one = subject("cfc", 2, 500, 3)
    walked = one.solve("walk")[0]
    from pararnn.compiler.engine import Tolerance

    tolerance = Tolerance(absolute=0.0, relative=0.0, sweeps=1)
    states, record = one.engine.solve(one.program, one.operands, one.initial, offsets=None, plan=one.plan(4), tolerance=tolerance)
    assert torch.equal(states, walked)
    assert record[..., 2].all()


@pytest.mark.parametrize("interval", ["walk", 8])
def test_nan_goes_on_in_its_channel_and_nowhere_else(subject, interval):
    one = subject("cfc", 2, 100, 3)
    clean = one.solve("walk")[0]
    one.operands[1][1, 40, 2] = torch.nan
    states, _ = one.solve(interval)
    assert states[1, 40:, 2].isnan().all()
    states[1, 40:, 2] = clean[1, 40:, 2]
    torch.testing.assert_close(states, clean, **CLOSE[torch.float64])


@pytest.mark.parametrize("state", [5, 64])
def test_gradients_may_overwrite_the_operands(subject, state):
    one = subject("cfc", 3, 300, state)
    states = one.solve()[0]
    expected = one.backward(states, states)
    both = torch.cat((one.operands[0], one.operands[1]), -1)
    one.operands[:2] = both[..., :state], both[..., state:]
    found = one.backward(states, states, into=[one.operands[0], one.operands[1], None, None])
    assert found[0] is one.operands[0]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))


def test_gradients_are_written_into_memory_of_another_precision(subject):
    one = subject("cfc", 3, 30, 5)
    states = one.solve()[0]
    target = torch.empty(3, 30, 5, dtype=torch.float32)
    found = one.backward(states, states, into=[target, None, None, None])
    assert found[0] is target
    torch.testing.assert_close(target.double(), one.backward(states, states)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("needed", range(5))
def test_only_needed_gradients_are_given(subject, needed):
    one = subject("cfc", 2, 30, 5)
    states = one.solve()[0]
    everything = one.backward(states, states)
    found = one.backward(states, states, needs=[index == needed for index in range(5)])
    assert [gradient is not None for gradient in found] == [index == needed for index in range(5)]
    torch.testing.assert_close(found[needed], everything[needed])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [(1, 1), (3, 5), (7, 70), (1024, 4), (2, 300)], ids=str)
def test_one_step_is_the_first_of_a_walk_and_may_overwrite_the_state(subject, size, dtype):
    rows, state = size
    one = subject("cfc", rows, 1, state, dtype=dtype)
    expected = one.solve()[0][:, 0]
    operands = [operand[:, 0] if kind in "et" else operand for kind, operand in zip(one.kinds, one.operands, strict=True)]
    out = torch.empty_like(one.initial)
    one.engine.step(one.program, one.initial, operands, out)
    assert torch.equal(out, expected)
    one.engine.step(one.program, one.initial, operands, one.initial)
    assert torch.equal(one.initial, expected)
