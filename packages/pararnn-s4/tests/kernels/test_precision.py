import math

import pytest
import torch

from pararnn_s4 import cauchy, vandermonde, vandermonde_transpose
from pararnn_s4.kernels import products

LENGTH, STATE, COPIES = 4096, 32, 2


@pytest.fixture
def lin():
    """Numerators and S4D-Lin poles with steps of 0.01 and 0.1: angles of up to 6000 turns."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(COPIES, STATE, dtype=torch.complex128, generator=generator)
    x = torch.tensor([[0.01], [0.1]]) * torch.complex(torch.full((STATE,), -0.5, dtype=torch.float64), math.pi * torch.arange(STATE).double())
    return v.to(torch.complex64), x.to(torch.complex64)


def relative_error(found, truth):
    return float((found - truth).abs().max() / truth.abs().max())


def wide(*tensors):
    return tuple(tensor.to(torch.complex128 if tensor.is_complex() else torch.float64) for tensor in tensors)


def test_blocked_vandermonde_in_float32_rounds_no_angles(lin):
    truth = vandermonde(*wide(*lin), LENGTH, backend="naive")
    # The definition itself, in float32, is three times as far off.
    assert relative_error(vandermonde(*lin, LENGTH, backend="blocked"), truth) < 5e-7


def test_blocked_gradients_in_float32_are_those_of_float64(lin):
    gradients = []
    for inputs in (lin, wide(*lin)):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        vandermonde(*leaves, LENGTH, backend="blocked").square().sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    for found, truth in zip(*gradients, strict=True):
        assert relative_error(found, truth) < 2e-6


@pytest.mark.parametrize("backend", ["naive", "blocked", "numba"])
def test_cauchy_in_float32_is_exact_to_rounding_near_its_poles(backend, lin, require):
    require("cauchy", backend)
    v, x = lin
    # Nodes on the imaginary axis pass each pole at a distance of half a step, where a common denominator would lose three digits.
    z = 1j * torch.linspace(0, 10, 500)
    assert relative_error(cauchy(v, z, x, backend=backend), cauchy(*wide(v, z, x), backend="naive")) < 2e-6


@pytest.mark.parametrize("setting", ["high", "medium"])
def test_a_users_choice_of_fewer_bits_does_not_reach_the_kernels(setting, lin, monkeypatch):
    truth = vandermonde(*wide(*lin), 512)
    previous = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(setting)
        assert products.reduced_precision("cpu") or products.reduced_precision("cuda")
        monkeypatch.setattr(products, "reduced_precision", lambda device: True)
        assert relative_error(vandermonde(*lin, 512), truth) < 5e-7
        assert torch.get_float32_matmul_precision() == setting
    finally:
        torch.set_float32_matmul_precision(previous)


def test_a_product_of_eight_bit_parts_has_the_bits_of_float32(monkeypatch):
    monkeypatch.setattr(products, "reduced_precision", lambda device: True)
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 5, 64, generator=generator), torch.randn(2, 64, 7, generator=generator)
    for part in products._parts(left):
        assert torch.equal(part.bfloat16().float(), part)
    assert relative_error(products.exact_bmm(left, right), left.double() @ right.double()) < 3e-7


def test_a_product_of_eight_bit_parts_has_the_gradients_of_the_product(monkeypatch):
    monkeypatch.setattr(products, "reduced_precision", lambda device: True)
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=generator, requires_grad=True) for shape in ((2, 3, 4), (2, 4, 5))]
    found = torch.autograd.grad(products.exact_bmm(*inputs).square().sum(), inputs)
    expected = torch.autograd.grad(torch.bmm(*inputs).square().sum(), inputs)
    for gradient, truth in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, truth)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    v, x = torch.ones(3, dtype=dtype), torch.full((3,), -0.5, dtype=dtype)
    assert vandermonde(v, x, 4).dtype == torch.float32
    assert cauchy(v, v, x).dtype == torch.complex64
    assert vandermonde_transpose(torch.ones(4, dtype=dtype), v, x).dtype == torch.complex64
    torch.testing.assert_close(vandermonde(v, x, 4), vandermonde(v.float(), x.float(), 4), rtol=0, atol=0)


def test_autocast_changes_nothing(lin):
    plain = vandermonde(*lin, 64)
    leaves = [tensor.clone().requires_grad_() for tensor in lin]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = vandermonde(*leaves, 64)
        gradients = torch.autograd.grad(inside.sum(), leaves)
    assert torch.equal(inside, plain)
    for gradient, truth in zip(gradients, torch.autograd.grad(vandermonde(*leaves, 64).sum(), leaves), strict=True):
        assert torch.equal(gradient, truth)


@pytest.mark.parametrize("wide_one", [0, 1, 2])
def test_one_argument_of_double_precision_makes_all_double(wide_one):
    u, v, x = torch.ones(4), torch.ones(2, dtype=torch.complex64), torch.full((2,), -0.1 + 1j, dtype=torch.complex64)
    arguments = [tensor.to(torch.complex128) if index == wide_one else tensor for index, tensor in enumerate((u, v, x))]
    assert vandermonde_transpose(*arguments).dtype == torch.complex128
    assert cauchy(arguments[1], u, arguments[2]).dtype == (torch.complex64 if wide_one == 0 else torch.complex128)


def test_long_and_fast_poles_stay_finite():
    v = torch.ones(1, 2, dtype=torch.complex64)
    x = torch.tensor([[-50 + 1300j, -1e-6 + 1e-6j]], dtype=torch.complex64).requires_grad_()
    kernel = vandermonde(v, x, 1 << 16)
    kernel.sum().backward()
    assert torch.isfinite(kernel).all()
    assert torch.isfinite(torch.view_as_real(x.grad)).all()
