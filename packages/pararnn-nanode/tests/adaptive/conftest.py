"""Equations that the tests of this folder share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _float64():
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(default)


@pytest.fixture
def torchdiffeq():
    """The library whose arguments and numbers are those of `odeint`."""
    return pytest.importorskip("torchdiffeq")


@pytest.fixture
def swing():
    """A module `f(t, y)` for states `(..., 3)` that depends on time."""

    class Swing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3, 3) / 2)

        def forward(self, t, y):
            return torch.tanh(y @ self.weight) + torch.sin(3 * t) * y

    return Swing()
