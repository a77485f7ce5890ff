"""Equations to be solved in parallel, small ones in double precision."""

import pytest
import torch

from pararnn_nanode.fields.callable import CallableField
from pararnn_nanode.fields.convolution import ConvField
from pararnn_nanode.fields.dense import DenseField
from pararnn_nanode.fields.diagonal import DiagonalField
from pararnn_nanode.integrate import fixed
from pararnn_nanode.integrate.schedule import schedule
from pararnn_nanode.paths.bucket import BucketPath
from pararnn_nanode.paths.trigonometric import TrigPath

DIM = 5


@pytest.fixture(autouse=True)
def _double_precision():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(3)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def dense():
    """A maker of dense fields with trigonometric weights."""

    def make(dim=DIM, *, scale=1.0, **options):
        field = DenseField(dim, TrigPath((dim, dim), 2), **options)
        with torch.no_grad():
            field.path.coefficients.mul_(scale)
        return field

    return make


@pytest.fixture
def equations(dense):
    """Fields of every kind with an initial state each."""
    return {
        "dense": (dense(), torch.randn(3, DIM)),
        "dense with bias, one state": (dense(bias=TrigPath(DIM, 1, gain=1.0)), torch.randn(DIM)),
        "dense, silu, two batch dimensions": (dense(bias=TrigPath(DIM, 1, gain=1.0), activation="silu"), torch.randn(2, 3, DIM)),
        "linear": (dense(activation=None), torch.randn(2, DIM)),
        "buckets": (DenseField(DIM, BucketPath((DIM, DIM), 7)), torch.randn(2, DIM)),
        "diagonal": (DiagonalField(DIM, TrigPath(DIM, 2, gain=1.0)), torch.randn(2, DIM)),
        "convolution": (ConvField(2, 3, TrigPath((2, 2, 3, 3), 1)), torch.randn(2, 2, 4, 4)),
        "function": (CallableField(_Swing()), torch.randn(2, DIM)),
    }


class _Swing(torch.nn.Module):
    """A right-hand side that is no layer, with a parameter."""

    def __init__(self):
        super().__init__()
        self.rate = torch.nn.Parameter(torch.linspace(0.5, 2.0, DIM))

    def forward(self, t, x):
        return torch.sin(self.rate * x.roll(1, -1) + t)


@pytest.fixture
def compare():
    """Largest differences of states and gradients of a parallel solve to those of the walk, and the solution."""
    from pararnn_nanode.depth.solve import integrate

    def differences(field, x, plan, *, u=None, method="euler", **options):
        sources = [x.detach().requires_grad_(), *field.parameters()]
        inputs = u.detach().requires_grad_() if isinstance(u, torch.Tensor) else u
        sources += [inputs] if isinstance(u, torch.Tensor) else []
        walk = fixed.integrate(field, sources[0], plan, method=method, u=inputs)
        found = integrate(field, sources[0], plan, method=method, u=inputs, **options)
        probe = torch.randn(walk.x.shape, dtype=x.dtype).to(x.device)
        truths, ours = (torch.autograd.grad((solution.x * probe).sum(), sources) for solution in (walk, found))
        gradient = max(float((a - b).abs().max() / b.abs().max().clamp(min=1)) for a, b in zip(ours, truths, strict=True))
        return float((found.x - walk.x).detach().abs().max()), gradient, found

    return differences


@pytest.fixture
def path():
    """A schedule of the unit span, all knots asked for."""
    return lambda steps: schedule(1.0, steps=steps, span=(0.0, 1.0), output="path")
