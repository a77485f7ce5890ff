"""Under torch.compile, and under the transforms of torch.func."""

import pytest
import torch

from pararnn_s4 import cauchy, vandermonde, vandermonde_transpose

PRODUCTS = {
    "cauchy": lambda v, x, z, u, **options: cauchy(v, z, x, **options),
    "vandermonde": lambda v, x, z, u, **options: vandermonde(v, x, 9, **options),
    "vandermonde_transpose": lambda v, x, z, u, **options: vandermonde_transpose(u, v, x, **options),
}
each = pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS.keys())


@pytest.fixture
def inputs(numerators, poles, nodes, drive):
    return numerators, poles, nodes, drive[..., :9]


@each
@pytest.mark.parametrize("backend", ["auto", "naive"])
def test_the_products_compile_into_one_graph(product, backend, inputs):
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    traced = torch.compile(lambda *tensors: product(*tensors, backend=backend), backend="eager", fullgraph=True)
    expected, found = product(*leaves, backend="naive"), traced(*leaves)
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(result.abs().square().sum(), leaves, allow_unused=True) for result in (found, expected))
    for gradient, truth in zip(*gradients, strict=True):
        assert (gradient is None) == (truth is None)
        if truth is not None:
            torch.testing.assert_close(gradient, truth)


@each
def test_a_named_backend_that_cannot_be_traced_is_refused_in_one_graph(product, inputs):
    traced = torch.compile(lambda *tensors: product(*tensors, backend="keops"), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="cannot be traced; leave backend='auto'"):
        traced(*inputs)


def test_outside_of_one_graph_it_serves(inputs, require):
    require("cauchy", "numba")
    v, x, z, _ = inputs
    traced = torch.compile(lambda v, z, x: 2 * cauchy(v, z, x, backend="numba"), backend="eager")
    torch.testing.assert_close(traced(v, z, x), 2 * cauchy(v, z, x, backend="naive"))


@each
def test_vmap_over_numerators_equals_a_loop(product, inputs):
    v, x, z, u = inputs
    mapped = torch.func.vmap(lambda v, u: product(v, x, z, u))(v, u)
    torch.testing.assert_close(mapped, torch.stack([product(one, x, z, drive) for one, drive in zip(v, u, strict=True)]))


@each
def test_forward_mode_gives_the_derivative(product, inputs):
    _, slope = torch.func.jvp(lambda x: product(inputs[0], x, *inputs[2:]), (inputs[1],), (torch.ones_like(inputs[1]),))
    step = 1e-6
    x = inputs[1]
    difference = (product(inputs[0], x + step, *inputs[2:]) - product(inputs[0], x - step, *inputs[2:])) / (2 * step)
    torch.testing.assert_close(slope, difference, rtol=1e-6, atol=1e-6)


def test_a_named_backend_that_cannot_be_transformed_is_refused(inputs, require):
    from pararnn.errors import BackendError

    require("cauchy", "numba")
    v, x, z, _ = inputs
    with pytest.raises(BackendError, match="torch cannot look into compiled loops"):
        torch.func.vmap(lambda v: cauchy(v, z, x, backend="numba"))(v)
