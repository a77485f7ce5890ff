"""Walks under torch's compiler and the transforms of torch.func."""

import pytest
import torch

from pararnn.errors import DifferentiationError
from pararnn_nanode.integrate.fixed import integrate
from pararnn_nanode.integrate.schedule import schedule
from pararnn_nanode.paths.bucket import BucketPath

PAIRS = [
    *((method, gradient) for method in ("euler", "midpoint", "heun", "rk4", "reversible_heun", "alf") for gradient in ("backprop", "checkpoint")),
    ("reversible_heun", "reversible"),
    ("alf", "reversible"),
]


@pytest.fixture(params=[None, 3], ids=["trig", "bucket"])
def walk(request, network):
    """The end of a walk by method, gradient, state and time."""
    field = network(4, None if request.param is None else BucketPath((4, 4), buckets=request.param))

    def take(method, gradient, x, t=None):
        return integrate(field, x, schedule(t, steps=10, span=(0.0, 1.0)), method=method, gradient=gradient).last

    take.parameters = list(field.parameters())
    return take


@pytest.fixture
def compiled():
    torch._dynamo.reset()
    yield lambda function: torch.compile(function, fullgraph=True, backend="aot_eager")
    torch._dynamo.reset()


@pytest.mark.parametrize("gradient", ["backprop", "checkpoint"])
@pytest.mark.parametrize("method", ["euler", "rk4", "reversible_heun"])
def test_a_walk_compiles_in_one_graph(method, gradient, walk, batch, compiled):
    def values(function):
        states = function(batch)
        return states, *torch.autograd.grad(states.square().sum(), walk.parameters)

    def plain(x):
        return walk(method, gradient, x)

    for found, expected in zip(values(compiled(plain)), values(plain), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("method", "gradient"), PAIRS)
def test_vmap_over_samples_gives_the_batch(method, gradient, walk, batch):
    found = torch.func.vmap(lambda x: walk(method, gradient, x))(batch)
    torch.testing.assert_close(found, walk(method, gradient, batch), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("method", "gradient"), PAIRS)
def test_functional_derivatives_equal_those_of_autograd(method, gradient, walk, batch):
    x = batch.clone().requires_grad_()
    (expected,) = torch.autograd.grad(walk(method, gradient, x).square().sum(), x)
    torch.testing.assert_close(torch.func.grad(lambda x: walk(method, gradient, x).square().sum())(batch), expected, rtol=1e-12, atol=1e-12)
    _, tangent = torch.func.jvp(lambda x: walk(method, gradient, x).square().sum(), (batch,), (torch.ones_like(batch),))
    torch.testing.assert_close(tangent, expected.sum(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("method", "gradient"), PAIRS)
def test_functional_derivatives_by_the_end_time_equal_differences(method, gradient, walk, batch):
    def value(t):
        return walk(method, gradient, batch, t).sum()

    end, small = torch.tensor(0.9, dtype=torch.float64), 1e-5
    with torch.no_grad():
        expected = (value(end + small) - value(end - small)) / (2 * small)
    torch.testing.assert_close(torch.func.grad(value)(end), expected, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(torch.func.jvp(value, (end,), (torch.ones_like(end),))[1].detach(), expected, rtol=1e-6, atol=1e-8)


# Torch looks at .grad of whatever crosses a break of the graph (seen with 2.13).
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(("method", "gradient"), [("reversible_heun", "reversible"), ("rk4", "adjoint")])
def test_a_walk_that_cannot_be_traced_is_left_out_of_the_graph_or_says_why(method, gradient, walk, batch, compiled):
    def plain(x):
        return 2 * walk(method, gradient, x)

    found = torch.compile(plain, backend="aot_eager")(batch)
    torch.testing.assert_close(found, plain(batch), rtol=1e-12, atol=1e-12)
    assert all(part.any() for part in torch.autograd.grad(found.sum(), walk.parameters))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="gradient='checkpoint'"):
        compiled(plain)(batch)


def test_the_adjoint_refuses_functional_transforms(walk, batch):
    with pytest.raises(DifferentiationError, match=r"torch\.func"):
        torch.func.grad(lambda x: walk("rk4", "adjoint", x).sum())(batch)
