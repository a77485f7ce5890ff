"""The forms that times may have, and what a block gives for each."""

import pytest
import torch

from pararnn.errors import InputError, ShapeError
from pararnn_nanode import NANODE, PathWarning, TrigPath


def walked(block, x, end, steps, start=None):
    """Euler's method written out, from `start` (that of the span) to `end`."""
    start = block.span[0] if start is None else start
    for k in range(steps):
        x = x + (end - start) / steps * block.field(start + (end - start) * k / steps, x)
    return x


def test_a_block_alone_gives_the_last_state(make_block, state):
    block = make_block()
    torch.testing.assert_close(block(state), walked(block, state, 1.0, 10))


@pytest.mark.parametrize("end", [0.5, torch.tensor(0.5), torch.tensor(0.5, dtype=torch.float32)], ids=["float", "tensor", "float32"])
def test_one_number_is_the_end_time(make_block, state, end):
    block = make_block()
    torch.testing.assert_close(block(state, end), walked(block, state, 0.5, 5))


def test_an_int_is_an_end_time(make_block, state):
    block = make_block(span=(0.0, 2.0))
    torch.testing.assert_close(block(state, 1), walked(block, state, 1.0, 5))


@pytest.mark.parametrize("kind", [list, tuple, torch.tensor], ids=["list", "tuple", "tensor"])
def test_several_times_come_first_in_the_states(make_block, state, kind):
    block = make_block()
    states = block(state, kind([0.2, 0.5, 1.0]))
    torch.testing.assert_close(states, torch.stack([walked(block, state, 0.2, 2), walked(block, state, 0.5, 5), walked(block, state, 1.0, 10)]))


def test_numpy_times_are_times(make_block, state):
    numpy = pytest.importorskip("numpy")
    block = make_block()
    assert torch.equal(block(state, numpy.array([0.2, 1.0])), block(state, [0.2, 1.0]))
    assert torch.equal(block(state, numpy.float64(0.2)), block(state, 0.2))


def test_a_list_of_one_time_keeps_the_dimension_of_times(make_block, state):
    assert make_block()(state, [1.0]).shape == (1, *state.shape)


def test_the_start_itself_is_the_state_given(make_block, state):
    block = make_block()
    assert torch.equal(block(state, [0.0])[0], state)
    assert torch.equal(block(state, 0.0), state)


def test_repeated_times_give_equal_states(make_block, state):
    block = make_block()
    states = block(state, [0.0, 0.5, 0.5, 1.0])
    assert torch.equal(states[1], states[2])
    assert torch.equal(states[3], block(state))


def test_times_may_decrease_below_the_start(make_block, state):
    block = make_block(path=TrigPath((4, 4), 2, span=(-1.0, 1.0)))
    with pytest.warns(PathWarning, match="bias is a TrigPath .* read before 0"):
        states = block(state, [0.0, -0.5, -1.0])
    torch.testing.assert_close(states[2], walked(block, state, -1.0, 10))


def test_a_span_may_run_backwards(make_block, state):
    block = make_block(span=(1.0, 0.0))
    torch.testing.assert_close(block(state), walked(block, state, 0.0, 10))


@pytest.mark.parametrize("method", ["euler", "rk4", "dopri5"])
def test_running_back_returns_to_the_start(make_block, state, method):
    options = {} if method == "dopri5" else {"steps": 200}
    forth = make_block(method=method, **options)
    back = make_block(method=method, span=(1.0, 0.0), **options)
    back.field = forth.field
    torch.testing.assert_close(back(forth(state)), state, rtol=0, atol={"euler": 0.1, "rk4": 1e-8, "dopri5": 1e-6}[method])


@pytest.mark.parametrize("method", ["euler", "rk4", "reversible_heun", "dopri5"])
def test_every_sample_may_have_an_end_of_its_own(make_block, state, method):
    block = make_block(method=method)
    ends = torch.tensor([[0.3], [1.0], [0.7]])
    states = block(state, ends)
    assert states.shape == (1, *state.shape)
    # As many steps for the short way as for the longest, so that the error of the method differs.
    loose = {"euler": 0.1, "rk4": 1e-3, "reversible_heun": 0.05, "dopri5": 1e-6}[method]
    for sample, end in enumerate(ends[:, 0].tolist()):
        torch.testing.assert_close(states[0, sample], block(state[sample], end), rtol=0, atol=loose)


def test_every_sample_may_have_several_times_of_its_own(make_block, state):
    block = make_block()
    times = torch.tensor([[0.5, 1.0], [0.25, 0.5], [1.0, 0.5]])
    states = block(state, times)
    # Between two times all samples take the steps of the one with the longest way.
    for sample, (first, second) in enumerate(times.tolist()):
        early = walked(block, state[sample], first, 10)
        torch.testing.assert_close(states[0, sample], early)
        torch.testing.assert_close(states[1, sample], walked(block, early, second, 5, start=first))


@pytest.mark.parametrize("method", ["euler", "dopri5"])
def test_a_path_starts_at_the_state_and_ends_at_the_answer(make_block, state, method):
    block = make_block(method=method, output="path")
    solution = block.solve(state)
    torch.testing.assert_close(solution.t, torch.linspace(0, 1, 11))
    assert torch.equal(solution.x[0], state)
    torch.testing.assert_close(solution.last, NANODE(block.field, method=method)(state))
    assert torch.equal(block(state), solution.x)


def test_times_may_be_chosen_when_the_block_is_made(make_block, state):
    block = make_block(output=[0.5, 1.0])
    assert torch.equal(block(state), block(state, [0.5, 1.0]))
    assert torch.equal(block(state, 1.0), block(state, [1.0])[0])


def test_a_path_to_another_end_has_a_state_for_every_step(make_block, state):
    assert make_block(output="path")(state, 0.5).shape == (6, *state.shape)


@pytest.mark.parametrize("method", ["euler", "rk4", "dopri5"])
def test_a_gradient_reaches_the_end_time(make_block, state, method):
    block = make_block(method=method, steps=40)
    end = torch.tensor(0.8, requires_grad=True)
    (slope,) = torch.autograd.grad(block(state, end).sum(), end)
    expected = block.field(0.8, block(state, 0.8)).sum()
    torch.testing.assert_close(slope, expected, rtol={"euler": 0.1, "rk4": 1e-5, "dopri5": 1e-5}[method], atol=0)


@pytest.mark.parametrize("method", ["euler", "dopri5"])
@pytest.mark.parametrize("t", [float("nan"), [0.0, float("inf")]], ids=str)
def test_times_that_are_not_finite_are_refused(make_block, state, method, t):
    with pytest.raises(InputError, match="finite"):
        make_block(method=method)(state, t)


def test_times_of_another_number_of_samples_are_refused(make_block, state):
    with pytest.raises(ShapeError, match="2 samples"):
        make_block()(state, torch.ones(2, 1))
