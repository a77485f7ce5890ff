"""States by powers of a constant transition are those of the walk, whatever the chunk."""

import pytest
import torch

from pararnn.selection import Request
from pararnn_s4.cells import powers
from pararnn_s4.cells.powers import chunk_length, delayed, entries_by_pairs, states_by_powers
from pararnn_s4.cells.powers_backend import reasons


def problem(length, copies=2, batch=3, size=4):
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    transition = draw(copies, size, size)
    transition = transition / torch.linalg.matrix_norm(transition, 2)[:, None, None]
    return transition, draw(copies, size), draw(batch, length, copies), draw(batch, copies, size)


def walk(transition, column, inputs, state):
    states = []
    for sample in inputs.unbind(1):
        state = torch.einsum("hij,bhj->bhi", transition, state) + column * sample.unsqueeze(-1)
        states.append(state)
    return torch.stack(states).permute(2, 1, 0, 3)


@pytest.mark.parametrize("length", [1, 2, 3, 8, 63, 64, 200], ids="T{}".format)
@pytest.mark.parametrize("chunk", [1, 2, 8, 64], ids="chunk{}".format)
def test_states_are_those_of_the_walk(monkeypatch, length, chunk):
    monkeypatch.setattr(powers, "chunk_length", lambda *sizes: chunk)
    case = problem(length)
    torch.testing.assert_close(states_by_powers(*case), walk(*case), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [1, 5, 40], ids="T{}".format)
def test_gradients_are_those_of_the_walk(length):
    case = [tensor.requires_grad_() for tensor in problem(length)]
    weight = torch.arange(walk(*case).numel(), dtype=torch.float64).cos().reshape(walk(*case).shape)
    found, expected = (torch.autograd.grad((how(*case) * weight).sum(), case) for how in (states_by_powers, walk))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("chunks", range(1, 10))
def test_entries_are_those_of_the_walk_over_chunks(chunks):
    transition, _, _, initial = problem(1)
    ends = torch.randn(2, 3, chunks - 1, 4, dtype=torch.float64)
    state = initial.transpose(0, 1)
    expected = [state]
    for end in ends.unbind(2):
        state = state @ transition.mT + end
        expected.append(state)
    torch.testing.assert_close(entries_by_pairs(transition, ends, initial.transpose(0, 1)), torch.stack(expected, 2))


def test_a_signal_is_delayed_by_whole_steps():
    signal = torch.tensor([[1.0, 2.0, 3.0]])
    torch.testing.assert_close(delayed(signal), torch.tensor([[[1.0, 2.0, 3.0], [0.0, 1.0, 2.0], [0.0, 0.0, 1.0]]]))


def test_longer_batches_have_longer_chunks_and_none_is_longer_than_needed():
    assert chunk_length(1, 1024, 64) <= chunk_length(64, 1024, 64)
    assert [chunk_length(1000, length, 64) for length in (1, 2)] == [1, 2]


def test_the_backend_says_what_it_cannot_do():
    assert reasons(Request.of("s4/solve", dtype="float32")) == ()
    assert len(reasons(Request.of("s4/solve", device="mps", dtype="bfloat16"))) == 2
