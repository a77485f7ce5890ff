"""HiPPO matrices against numbers worked out elsewhere, and the correction that makes them normal."""
# ruff: noqa: N803, N806 -- the names of the literature and of the reference functions.

import math

import pytest
import torch

from pararnn.errors import ConfigError
from pararnn_s4 import rank_correction, transition

LEGS = (
    [
        [-1, 0, 0, 0],
        [-1.7320508075688772, -2, 0, 0],
        [-2.23606797749979, -3.872983346207417, -3, 0],
        [-2.6457513110645907, -4.58257569495584, -5.916079783099617, -4],
    ],
    [1, 1.7320508075688772, 2.23606797749979, 2.6457513110645907],
)
LEGT = (
    [
        [-0.5, 0.866025403784, -1.11803398875, 1.322875655532],
        [-0.866025403784, -1.5, 1.936491673104, -2.291287847478],
        [-1.11803398875, -1.936491673104, -2.5, 2.95803989155],
        [-1.322875655532, -2.291287847478, -2.95803989155, -3.5],
    ],
    [0.5, 0.8660254037844386, 1.118033988749895, 1.3228756555322954],
)
FOUT = (
    [[-1, 0, -math.sqrt(2), 0], [0, 0, 0, 0], [-math.sqrt(2), 0, -2, -math.pi], [0, 0, math.pi, 0]],
    [1, 0, math.sqrt(2), 0],
)
# The LegT matrix is known to twelve digits only.
KNOWN = [("legs", LEGS, 2e-15), ("legt", LEGT, 1e-11), ("fourier", FOUT, 1e-15), ("fout", FOUT, 1e-15)]
MEASURES = ["legs", "legt", "fourier", "fout"]


@pytest.mark.parametrize(("measure", "known", "atol"), KNOWN, ids=[measure for measure, *_ in KNOWN])
def test_matrices_have_their_known_entries(measure, known, atol):
    A, B = transition(measure, 4)
    torch.testing.assert_close(A, torch.tensor(known[0], dtype=torch.float64), rtol=0, atol=atol)
    torch.testing.assert_close(B, torch.tensor(known[1], dtype=torch.float64).unsqueeze(-1), rtol=0, atol=1e-15)


@pytest.mark.parametrize("N", [1, 2, 5, 32])
def test_legt_entries_equal_their_formula_written_as_loops(N):
    expected = [[-0.5 * math.sqrt((2 * n + 1) * (2 * k + 1)) * ((-1) ** (n - k) if n < k else 1) for k in range(N)] for n in range(N)]
    torch.testing.assert_close(transition("legt", N)[0], torch.tensor(expected, dtype=torch.float64), rtol=1e-15, atol=0)


def test_eigenvalues_of_legs_are_the_negative_whole_numbers():
    eigenvalues = torch.linalg.eigvals(transition("legs", 8)[0]).real.sort(descending=True).values
    torch.testing.assert_close(eigenvalues, -torch.arange(1, 9, dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize("N", [4, 64, 256])
@pytest.mark.parametrize(("measure", "constant"), [("legs", -1.0), ("legt", 0.0), ("fourier", 0.0)])
def test_the_corrected_matrix_is_normal_and_skew_up_to_a_multiple_of_the_identity(measure, constant, N):
    A, _ = transition(measure, N)
    P = rank_correction(measure, N, 2, torch.float64)
    M = A + P.mT @ P
    product, scale = M @ M.mT, M.abs().max().item()
    torch.testing.assert_close(M.mT @ M, product, rtol=0, atol=1e-14 * product.abs().max().item())
    torch.testing.assert_close(M + M.mT, constant * torch.eye(N, dtype=torch.float64), rtol=0, atol=1e-14 * scale)
    torch.testing.assert_close(M.diagonal(), torch.full((N,), constant / 2, dtype=torch.float64), rtol=0, atol=1e-14 * scale)


def test_the_correction_of_fourier_keeps_the_precision_that_is_asked_for():
    A, _ = transition("fourier", 8)
    P = rank_correction("fourier", 8, dtype=torch.float64)
    assert P.dtype == torch.float64
    M = A + P.mT @ P
    torch.testing.assert_close(M, -M.mT, rtol=0, atol=1e-15)


@pytest.mark.parametrize("measure", MEASURES)
def test_a_larger_rank_adds_rows_of_zeros(measure):
    natural = rank_correction(measure, 6, 2 if measure == "legt" else 1)
    padded = rank_correction(measure, 6, 4)
    assert padded.shape == (4, 6)
    assert torch.equal(padded[: len(natural)], natural)
    assert not padded[len(natural) :].any()


@pytest.mark.parametrize(("measure", "rank"), [("legt", 1), ("legs", 0)])
def test_a_rank_below_what_the_measure_needs_is_refused(measure, rank):
    with pytest.raises(ConfigError, match=f"got rank={rank}; pass rank={rank + 1}"):
        rank_correction(measure, 4, rank)


@pytest.mark.parametrize("build", [transition, rank_correction])
def test_an_unknown_measure_is_refused_with_the_known_ones(build):
    with pytest.raises(ConfigError, match="'chebyshev' is unknown; choose one of legs, legt, fourier, fout"):
        build("chebyshev", 4)


@pytest.mark.parametrize("build", [transition, rank_correction])
def test_an_odd_fourier_basis_is_refused(build):
    with pytest.raises(ConfigError, match="N must be even, got N=5; pass N=6"):
        build("fourier", 5)


def test_a_state_without_entries_is_refused():
    with pytest.raises(ConfigError, match="got N=0"):
        transition("legs", 0)
