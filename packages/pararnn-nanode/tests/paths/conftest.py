"""One path of each kind."""

import pytest
import torch
from torch import nn

from pararnn_nanode import BracketFlow, BucketPath, CallablePath, ConstantPath, CosinePath, GivensWalk, HyperPath, OrthogonalPath, PolyPath, TrigPath

N = 3


def waves(t, a, b):
    return a * torch.cos(t) + b


class Ramp(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.slope = nn.Parameter(torch.randn(N, N, dtype=dtype))

    def reset_parameters(self):
        with torch.no_grad():
            self.slope.normal_()

    def forward(self, t):
        return self.slope * t + self.slope**2


def trig(dtype):
    return TrigPath((N, N), 2, dtype=dtype)


PATHS = {
    "constant": lambda dtype: ConstantPath((N, N), dtype=dtype),
    "bucket": lambda dtype: BucketPath((N, N), 4, dtype=dtype),
    "legendre": lambda dtype: PolyPath((N, N), 3, dtype=dtype),
    "chebyshev": lambda dtype: PolyPath((N, N), 3, basis="chebyshev", dtype=dtype),
    "monomial": lambda dtype: PolyPath((N, N), 3, basis="monomial", dtype=dtype),
    "trig": trig,
    "trig learned": lambda dtype: TrigPath((N, N), 1, learn_omega=True, dtype=dtype),
    "cosine": lambda dtype: CosinePath((N, N), 3, dtype=dtype),
    "mlp": lambda dtype: HyperPath((N, N), 4, dtype=dtype),
    "recurrent": lambda dtype: HyperPath((N, N), 2, variant="recurrent", steps=3, dtype=dtype),
    "function": lambda dtype: CallablePath((N, N), waves, (torch.randn(N, N, dtype=dtype), torch.randn(N, dtype=dtype))),
    "module": lambda dtype: CallablePath((N, N), Ramp(dtype)),
    "householder": lambda dtype: OrthogonalPath(trig(dtype), sign=-1),
    "cayley": lambda dtype: OrthogonalPath(trig(dtype), map="cayley"),
    "matrix_exp": lambda dtype: OrthogonalPath(trig(dtype), map="matrix_exp"),
    "givens": lambda dtype: GivensWalk(N, [(0, 1), (1, 2), (0, 2)], shared_angle=False, dtype=dtype),
    "givens path": lambda dtype: GivensWalk(N, [(0, 1)], start=OrthogonalPath(trig(dtype)), dtype=dtype),
    "bracket": lambda dtype: BracketFlow(N, steps=4, order=9, gain=0.5, dtype=dtype),
}


@pytest.fixture(params=PATHS)
def kind(request):
    """The name of a kind of path."""
    return request.param


@pytest.fixture
def make(kind):
    """Makes a path `(3, 3)` of the kind, of float64."""
    return lambda: PATHS[kind](torch.float64)


@pytest.fixture
def path(make):
    torch.manual_seed(0)
    return make()


@pytest.fixture
def times():
    return torch.tensor([0.0, 0.13, 0.5, 0.77, 0.5, 1.0], dtype=torch.float64)
