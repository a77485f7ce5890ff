import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from pararnn_s4 import cauchy, vandermonde, vandermonde_transpose

CAUCHY = ["naive", "blocked", "numba"]
VANDERMONDE = ["naive", "blocked"]


def leaves(*tensors):
    return tuple(tensor.detach().clone().requires_grad_() for tensor in tensors)


@pytest.mark.parametrize("backend", CAUCHY)
@pytest.mark.parametrize("conj", [True, False])
def test_cauchy_has_right_first_and_second_derivatives(backend, conj, numerators, nodes, poles, require):
    require("cauchy", backend)
    inputs = leaves(numerators, nodes[:3], poles)

    def product(v, z, w):
        return cauchy(v, z, w, conj=conj, backend=backend)

    assert gradcheck(product, inputs)
    assert gradgradcheck(product, inputs)


@pytest.mark.parametrize("backend", VANDERMONDE)
@pytest.mark.parametrize("conj", [True, False])
def test_vandermonde_has_right_first_and_second_derivatives(backend, conj, numerators, poles):
    def product(v, x):
        return vandermonde(v, x, 5, conj=conj, backend=backend)

    assert gradcheck(product, leaves(numerators, poles))
    assert gradgradcheck(product, leaves(numerators, poles))


@pytest.mark.parametrize("backend", VANDERMONDE)
@pytest.mark.parametrize("is_complex", [True, False], ids=["complex", "real"])
def test_the_transposed_product_has_right_first_and_second_derivatives(backend, is_complex, drive, numerators, poles):
    inputs = leaves(drive[..., :5] * (1 + 0.5j) if is_complex else drive[..., :5], numerators, poles)

    def product(u, v, x):
        return vandermonde_transpose(u, v, x, backend=backend)

    assert gradcheck(product, inputs)
    assert gradgradcheck(product, inputs)


@pytest.mark.parametrize("backend", VANDERMONDE)
def test_only_the_gradients_that_are_needed_are_computed(backend, numerators, poles):
    for needs_v in (True, False):
        v, x = numerators.clone().requires_grad_(needs_v), poles.clone().requires_grad_(not needs_v)
        vandermonde(v, x, 6, backend=backend).sum().backward()
        assert (v.grad is None, x.grad is None) == (not needs_v, needs_v)


def test_real_inputs_have_real_gradients():
    v, x = torch.ones(2, dtype=torch.float64, requires_grad=True), torch.tensor([-0.1, -0.2], dtype=torch.float64, requires_grad=True)
    vandermonde(v, x, 4).sum().backward()
    steps = torch.arange(4, dtype=torch.float64)
    powers = torch.exp(x.detach().unsqueeze(-1) * steps)
    torch.testing.assert_close(v.grad, 2 * powers.sum(-1))
    torch.testing.assert_close(x.grad, 2 * (steps * powers).sum(-1))
