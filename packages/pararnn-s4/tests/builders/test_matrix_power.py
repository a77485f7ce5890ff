"""Powers of a matrix and gathered sums against their definition."""
# ruff: noqa: N803, N806 -- the names of the literature and of the reference functions.

import pytest
import torch

from pararnn.errors import ConfigError, ShapeError
from pararnn_s4 import power

LENGTHS = pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 6, 7, 8, 13, 64, 100], ids="L{}".format)


def problem(length, dtype=torch.float64, lead=(), vector_lead=()):
    generator = torch.Generator().manual_seed(length)
    A = torch.randn(*lead, 4, 4, dtype=dtype, generator=generator) / 4
    return A, torch.randn(*vector_lead, 4, length, dtype=dtype, generator=generator)


def gathered(A, v):
    """The definition, one power at a time."""
    total, matrix = torch.zeros_like(v[..., 0] if v.shape[-1] else v.sum(-1)), torch.eye(4, dtype=A.dtype).expand_as(A)
    total = torch.zeros((*torch.broadcast_shapes(A.shape[:-2], v.shape[:-2]), 4), dtype=total.dtype)
    for index in range(v.shape[-1]):
        total = total + (matrix @ v[..., index].unsqueeze(-1)).squeeze(-1)
        matrix = matrix @ A
    return matrix, total


@LENGTHS
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_powers_and_sums_equal_their_definition(length, dtype):
    A, v = problem(length, dtype)
    expected = gathered(A, v)
    torch.testing.assert_close(power(length, A, v), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(power(length, A), expected[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("lead", "vector_lead"), [((3,), (3,)), ((3,), (2, 3)), ((), (2,)), ((2, 3), ())], ids=str)
def test_leading_dimensions_broadcast(lead, vector_lead):
    A, v = problem(6, lead=lead, vector_lead=vector_lead)
    torch.testing.assert_close(power(6, A, v), gathered(A, v), rtol=1e-12, atol=1e-12)


@LENGTHS
def test_arguments_are_left_as_they_were_and_results_have_memory_of_their_own(length):
    A, v = problem(length)
    before = A.clone(), v.clone()
    for result in power(length, A, v):
        result.fill_(7.0)
    power(length, A).fill_(7.0)
    assert torch.equal(A, before[0])
    assert torch.equal(v, before[1])


@pytest.mark.parametrize("length", [1, 3, 5, 6, 7, 13])
def test_gradients_are_right_for_every_length(length):
    A, v = problem(length)
    assert torch.autograd.gradcheck(lambda A, v: power(length, A, v), (A.requires_grad_(), v.requires_grad_()))


def test_a_real_matrix_meets_complex_vectors():
    A, v = problem(5)
    matrix, total = power(5, A, v * 1j)
    torch.testing.assert_close(total, 1j * gathered(A, v)[1], rtol=1e-12, atol=1e-12)
    assert matrix.dtype == torch.complex128


def test_a_negative_power_is_refused():
    with pytest.raises(ConfigError, match="got L=-1"):
        power(-1, torch.eye(2))


@pytest.mark.parametrize("shape", [(2, 3), (4,)], ids=str)
def test_a_matrix_that_is_not_square_is_refused(shape):
    with pytest.raises(ShapeError, match="only a square matrix"):
        power(2, torch.ones(shape))


@pytest.mark.parametrize("shape", [(4, 3), (3, 2), (2,)], ids=str)
def test_vectors_of_another_length_are_refused(shape):
    with pytest.raises(ShapeError, match=r"v must end in \(N, L\) = \(4, 2\)"):
        power(2, torch.eye(4), torch.ones(shape))
