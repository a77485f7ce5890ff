"""Every backend that runs on a CPU against the definition: values, and gradients of every input."""

import pytest
import torch

from pararnn_s4 import cauchy, vandermonde, vandermonde_transpose

# KeOps and torch.compile take seconds for each form, so that they are asked about one dtype and few forms.
FAST = {"cauchy": ["blocked", "numba"], "vandermonde": ["blocked"], "vandermonde_transpose": ["blocked"]}
SLOW = ["compiled", "keops"]
CLOSE = {"rtol": 1e-13, "atol": 1e-13}
ROUNDING = 1e-13


def each(op):
    return pytest.mark.parametrize("backend", [*FAST[op], *SLOW])


def fast(op):
    return pytest.mark.parametrize("backend", FAST[op])


def agree(found, truth):
    """Agreement to rounding, relative to the largest number."""
    torch.testing.assert_close(found, truth, rtol=0, atol=ROUNDING * truth.abs().max().item())


def compare(product, *inputs, backend):
    """Values and gradients by `backend` and by the definition."""
    inputs = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    expected, found = product(*inputs, backend="naive"), product(*inputs, backend=backend)
    agree(found, expected)
    cotangent = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9), dtype=expected.dtype)
    wanted = torch.autograd.grad(expected, inputs, cotangent)
    for gradient, truth in zip(torch.autograd.grad(found, inputs, cotangent), wanted, strict=True):
        agree(gradient, truth)


@each("cauchy")
def test_the_cauchy_product_agrees_with_its_definition(backend, numerators, nodes, poles, require):
    require("cauchy", backend)
    compare(cauchy, numerators, nodes, poles, backend=backend)


@each("vandermonde")
def test_the_vandermonde_product_agrees_with_its_definition(backend, numerators, poles, require):
    require("vandermonde", backend)
    compare(lambda v, x, backend: vandermonde(v, x, 41, backend=backend), numerators, poles, backend=backend)


@each("vandermonde_transpose")
def test_the_transposed_product_agrees_with_its_definition(backend, drive, numerators, poles, require):
    require("vandermonde_transpose", backend)
    compare(vandermonde_transpose, drive, numerators, poles, backend=backend)


@fast("cauchy")
@pytest.mark.parametrize("conj", [True, False])
@pytest.mark.parametrize("length", [1, 2, 300])
@pytest.mark.parametrize("state", [1, 5])
def test_the_cauchy_product_agrees_for_every_form(backend, conj, length, state, random, require):
    require("cauchy", backend)
    v, w, z = random(2, 3, state, seed=1), random(3, state, seed=2), random(3, length, seed=3) + 4
    compare(lambda v, z, w, backend: cauchy(v, z, w, conj=conj, backend=backend), v, z, w, backend=backend)
    compare(lambda v, z, w, backend: cauchy(v, z, w, conj=conj, backend=backend), v, z[0], w, backend=backend)


@each("cauchy")
def test_the_pairs_of_a_cauchy_product_are_two_products_without_pairs(backend, numerators, nodes, poles, require):
    require("cauchy", backend)
    one, other = (cauchy(v, nodes, w, conj=False, backend=backend) for v, w in ((numerators, poles), (numerators.conj(), poles.conj())))
    agree(cauchy(numerators, nodes, poles, backend=backend), one + other)


@fast("cauchy")
def test_pieces_and_threads_leave_no_seams(backend, random, require, monkeypatch):
    from pararnn_s4.kernels import node_chunks, numba_backend

    require("cauchy", backend)
    monkeypatch.setattr(node_chunks, "CACHED", 64)
    monkeypatch.setattr(node_chunks, "NODES", 8)
    monkeypatch.setattr(numba_backend, "WORTH_THREADS", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    compare(cauchy, random(2, 5, 3, seed=1), random(53, seed=3) + 4, random(5, 3, seed=2), backend=backend)


@pytest.mark.parametrize("conj", [True, False])
@pytest.mark.parametrize("length", [1, 2, 17, 64, 65, 1000])
@pytest.mark.parametrize("state", [1, 5])
def test_the_vandermonde_product_agrees_for_every_form(conj, length, state, random):
    v, x = random(2, 3, state, seed=1), -0.01 * random(3, state, seed=2).abs() + 1j
    compare(lambda v, x, backend: vandermonde(v, x, length, conj=conj, backend=backend), v, x, backend="blocked")


@pytest.mark.parametrize("is_complex", [True, False], ids=["complex", "real"])
@pytest.mark.parametrize("length", [1, 2, 17, 65, 1000])
def test_the_transposed_product_agrees_for_every_form(is_complex, length, random):
    v, x, u = random(3, 4, seed=1), -0.01 * random(3, 4, seed=2).abs() + 1j, random(2, 3, length, seed=3)
    compare(vandermonde_transpose, u if is_complex else u.real, v, x, backend="blocked")


@pytest.mark.parametrize("shapes", [((3,), (5,), (3,)), ((3,), (4, 5), (2, 1, 3)), ((6, 1, 2, 3), (5,), (2, 3)), ((2, 3), (1, 5), (1, 3))])
def test_leading_dimensions_broadcast(shapes, random):
    v, z, w = (random(*shape, seed=index) + 4 * (index == 1) for index, shape in enumerate(shapes))
    expected = (v.unsqueeze(-1) / (z.unsqueeze(-2) - w.unsqueeze(-1))).sum(-2)
    for backend in ("naive", "auto"):
        torch.testing.assert_close(cauchy(v, z, w, conj=False, backend=backend), expected, **CLOSE)
    powers = torch.exp(w.unsqueeze(-1) * torch.arange(4))
    torch.testing.assert_close(vandermonde(v, w, 4), 2 * (v.unsqueeze(-1) * powers).sum(-2).real, **CLOSE)
    u = random(*v.shape[:-1], 4, seed=5).real
    torch.testing.assert_close(vandermonde_transpose(u, v, w), v * (u.unsqueeze(-2) * powers).sum(-1), **CLOSE)


@pytest.mark.parametrize("backend", ["naive", "blocked", "numba"])
def test_strided_and_conjugated_views_are_read_rightly(backend, numerators, nodes, poles, require):
    require("cauchy", backend)
    plain = cauchy(numerators.conj().resolve_conj(), nodes.flip(0), poles.conj().resolve_conj(), backend=backend)
    transposed = numerators.conj().permute(2, 1, 0).contiguous().permute(2, 1, 0)
    doubled = torch.stack((nodes.flip(0), nodes), -1)[:, 0]
    torch.testing.assert_close(cauchy(transposed, doubled, poles.conj(), backend=backend), plain, rtol=0, atol=0)


def test_shared_poles_have_the_reciprocals_computed_once(numerators, nodes, poles):
    from pararnn_s4.kernels.arrange import Leading

    leading = Leading.of(numerators.shape[:-1], nodes.shape[:-1], poles.shape[:-1])
    assert leading == Leading(groups=(2,), copies=(2,))
    assert leading.shared(nodes).shape == (1, 7)


def test_kernels_see_numbers_in_memory_as_they_are(numerators, poles):
    from pararnn_s4.kernels.arrange import Leading

    leading = Leading.of(numerators.shape[:-1], poles.shape[:-1])
    assert not leading.numerators(numerators.conj()).is_conj()
    assert not leading.poles(poles.conj()).is_conj()
    assert not leading.numerators(numerators.conj().imag).is_neg()


@fast("cauchy")
def test_a_cotangent_that_is_a_view_is_read_rightly(backend, numerators, nodes, poles, require):
    require("cauchy", backend)
    gradients = []
    for name in ("naive", backend):
        v = numerators.clone().requires_grad_()
        # The gradient of a sum has no memory of its own, and conj() hands on a conjugated one.
        gradients.append(torch.autograd.grad(cauchy(v, nodes, poles, backend=name).conj().sum().abs(), v)[0])
    torch.testing.assert_close(*gradients)
