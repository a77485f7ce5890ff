import pytest
import torch

from pararnn_s4 import cauchy, vandermonde, vandermonde_transpose

V = torch.tensor([1 + 1j, 2 - 1j], dtype=torch.complex128)
W = torch.tensor([-0.5 + 1j, -0.5 + 2j], dtype=torch.complex128)
Z = torch.tensor([0, 1j, 1], dtype=torch.complex128)
SYMMETRIC = [0.6117647058823528, 3.6794912559618442 + 2.0171701112877587j, 1.9076923076923078]
ONE_SIDED = [0.3058823529411764 + 2.023529411764706j, 3.6 + 3.2j, 0.9538461538461539 + 1.169230769230769j]
POWERS = [6.0, -0.2719257999421192, -2.4938797478033794, 0.22750912097658615]
TRANSPOSED = [-0.8281471597846917 + 3.220435621829173j, -0.18459826186249673 + 0.7617923788863994j]
EXACT = {"rtol": 1e-13, "atol": 1e-13}


def complex_(values):
    return torch.tensor(values, dtype=torch.complex128)


@pytest.mark.parametrize("backend", ["naive", "blocked", "numba", "auto"])
def test_cauchy_gives_the_published_numbers(backend, require):
    require("cauchy", backend)
    torch.testing.assert_close(cauchy(V, Z, W, backend=backend), complex_(SYMMETRIC), **EXACT)
    torch.testing.assert_close(cauchy(V, Z, W, conj=False, backend=backend), complex_(ONE_SIDED), **EXACT)


@pytest.mark.parametrize("backend", ["naive", "blocked", "auto"])
def test_vandermonde_gives_the_published_numbers(backend):
    torch.testing.assert_close(vandermonde(V, W, 4, backend=backend), torch.tensor(POWERS, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("backend", ["naive", "blocked", "auto"])
def test_vandermonde_transpose_gives_the_published_numbers(backend):
    u = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(vandermonde_transpose(u, V, W, 3, backend=backend), complex_(TRANSPOSED), **EXACT)


def test_the_symmetric_cauchy_product_is_the_sum_of_two_one_sided_ones():
    both = cauchy(V, Z, W, conj=False) + cauchy(V.conj(), Z, W.conj(), conj=False)
    torch.testing.assert_close(cauchy(V, Z, W), both, **EXACT)


def test_the_symmetric_vandermonde_product_is_twice_the_real_part():
    torch.testing.assert_close(vandermonde(V, W, 4), 2 * vandermonde(V, W, 4, conj=False).real, **EXACT)


def test_the_transpose_is_the_adjoint(random):
    v, x, u = random(5, seed=1), -random(5, seed=2).abs() + 1j, random(40, seed=3).real
    inner = (vandermonde(v, x, 40) * u).sum()
    torch.testing.assert_close(inner, 2 * vandermonde_transpose(u, v, x).sum().real, **EXACT)


def test_real_arguments_are_complex_ones_of_imaginary_part_zero():
    # The factor 2 stays, as the docstring says: a real pole is its own partner.
    one, half = torch.ones(1, dtype=torch.float64), torch.full((1,), -0.5, dtype=torch.float64)
    torch.testing.assert_close(vandermonde(one, half, 3), 2 * torch.exp(-0.5 * torch.arange(3, dtype=torch.float64)), **EXACT)
    torch.testing.assert_close(cauchy(one, one, half), complex_([2 / 1.5]), **EXACT)


@pytest.mark.parametrize("backend", ["naive", "blocked", "numba"])
def test_a_node_on_a_pole_gives_no_finite_number(backend, require):
    require("cauchy", backend)
    assert not torch.isfinite(torch.view_as_real(cauchy(V, W, W, backend=backend))).all(-1).any()
